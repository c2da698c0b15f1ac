"""BigDL: training inside Spark's own executors, by its block manager."""

from pipelines.engines.bigdl.engine import BigDLEngine

__all__ = ["BigDLEngine"]
