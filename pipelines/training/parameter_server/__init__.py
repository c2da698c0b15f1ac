"""Parameters for workers over the network, from any engine.

The server reads no request without the token of the run. Every request has the expected size, and
carries arrays in a typed binary form. The server never unpickles received bytes.
"""
