"""TensorFlowOnSpark: a TFCluster on the executors, and TensorFlow's own ways between them."""

from pipelines.engines.tensorflowonspark.engine import TensorFlowOnSparkEngine

__all__ = ["TensorFlowOnSparkEngine"]
