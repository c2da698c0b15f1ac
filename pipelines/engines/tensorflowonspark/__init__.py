"""TensorFlowOnSpark: TensorFlow nodes on the executors.

The library contributes the Spark job of the nodes, their queues and the feed through Spark. This
package contributes the nodes' registration, the workers' exchange, the parameter servers, and the
watch over the nodes; :mod:`pipelines.engines.tensorflowonspark.engine` gives the reasons.
"""

NAME = "tensorflowonspark"
