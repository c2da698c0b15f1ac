"""Parameters that workers reach over the network, from any engine.

Every request shows the token of the run before any of it is read, has the expected size, and
carries arrays in a typed binary form. Nothing that arrives is unpickled.
"""
