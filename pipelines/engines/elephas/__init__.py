"""Elephas: a Spark job of workers around a parameter server in the driver.

Elephas contributes ``AsynchronousSparkModel`` with its modes and its choice of client and server, a
Keras model as master network, the Spark job of its workers, and the locking of the parameters in
mode `async`.

This package contributes the workers' loops, the update rules, the optimiser on the server, and the
transport. Elephas's servers listen at a known port of a public address and unpickle all data; the
servers of this package demand the token of the run, and read arrays of known shapes.
"""
