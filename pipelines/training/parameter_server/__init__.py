"""Parameters that workers reach over the network, whatever engine has started them.

Every request shows the token of the run before anything of it is read, has the size that is due,
and carries arrays in a typed binary form. Nothing that arrives is unpickled.
"""
