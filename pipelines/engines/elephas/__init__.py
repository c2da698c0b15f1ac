"""Elephas: a Spark job of workers around a parameter server in the driver.

Elephas's part: ``AsynchronousSparkModel`` with its modes and its choice of client and server, the
Keras model that is its master network, the Spark job of its workers, and the locking of the
parameters in mode `async`.

Our part: the workers' loops, the update rules, the optimiser on the server, and the transport.
Elephas's servers listen at a known port of a public address and unpickle all data; ours demand the
token of the run, and read arrays of known shapes.
"""
