"""Mesh TensorFlow: an encoder in named dimensions, on a mesh of replicas and their members.

What is the library's: which part of each product a worker computes, and what they exchange for it.
What is TensorFlow's: the servers that compute, and the session that drives them. What is ours: how
workers find one another, and all that is not the graph.
"""
