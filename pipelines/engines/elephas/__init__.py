"""Elephas: a Spark job of workers around a parameter server in the driver.

What is Elephas's: ``AsynchronousSparkModel`` with its modes and its choice of client and server,
the Keras model that is its master network, the Spark job of its workers, and the locking of the
parameters in mode `async`.

What is ours: the loops of the workers, the update rules and the optimiser on the server, and what
travels and how. Elephas's servers listen at a known port of a public address and unpickle whatever
is sent; ours demand the token of the run, and read arrays of known shapes.
"""
