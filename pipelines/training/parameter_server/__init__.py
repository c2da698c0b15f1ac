"""Parameters for workers over the network, from any engine.

Every request begins with the token of the run, has the expected size, and carries arrays in a typed
binary form. The server never unpickles received bytes.
"""
