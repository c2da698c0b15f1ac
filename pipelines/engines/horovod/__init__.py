"""Horovod: ranks in processes of a Spark job average gradients among themselves.

Horovod contributes the collective operations. This package contributes the start of the ranks, and
the store in which they meet, since Horovod's own servers are open to everybody.
"""
