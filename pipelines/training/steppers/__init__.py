"""The frameworks' sides of training, imported only in a worker."""
