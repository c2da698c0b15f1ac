"""TensorFlowOnSpark: TensorFlow nodes on the executors.

What is the library's: the Spark job of the nodes, their queues and the feed through Spark. What is
ours: the nodes' registration, what the workers exchange, the parameter servers, and the watch over
the nodes; see :mod:`pipelines.engines.tensorflowonspark.engine` for why.
"""

NAME = "tensorflowonspark"
