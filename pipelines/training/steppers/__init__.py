"""The frameworks' sides of training, imported only in a worker.

Each framework has one, and so have the engines that split the state between the workers.
"""
