"""Mesh TensorFlow: an encoder in named dimensions, on a mesh of replicas and their members.

The library's part: each worker's part of a product, and the exchange for it. TensorFlow's part: the
servers that compute, and the session that drives them. Our part: how workers find one another, and
all that is not the graph.
"""
