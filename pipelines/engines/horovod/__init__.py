"""Horovod: ranks in processes of a Spark job, which average gradients among themselves.

Horovod's part: the collective operations. Our part: the start of the ranks and the store through
which they find one another, since Horovod's own servers are open to everybody.
"""
