"""BigDL: training inside Spark's own executors.

Two of its libraries train, by ``training.framework``: dllib in the executors' JVMs, with gradients
in Spark's block manager (``bigdl``, this package), and Orca in Python (``torch``,
:mod:`pipelines.engines.orca`).

dllib contributes the graph, forward and backward passes, its ``DistriOptimizer`` with a few Spark
jobs per step, and the sum of the gradients. This package contributes the order of the granules,
AdamW on a slice of the weights, checkpoints, metrics, and the watch over jobs and executors.
"""
