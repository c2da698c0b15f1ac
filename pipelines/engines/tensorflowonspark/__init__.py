"""TensorFlowOnSpark: TensorFlow nodes on the executors.

The library's part: the Spark job of the nodes, their queues and the feed through Spark. Our part:
the nodes' registration, the workers' exchange, the parameter servers, and the watch over the nodes;
:mod:`pipelines.engines.tensorflowonspark.engine` says why.
"""

NAME = "tensorflowonspark"
