"""Mesh TensorFlow: an encoder in named dimensions, on a mesh of replicas and their members.

The library contributes each worker's part of a product, and its exchange. TensorFlow contributes
the computing servers and the session. This package contributes the meeting of the workers, and
everything outside the graph.
"""
