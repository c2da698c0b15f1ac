"""Horovod: ranks in processes of a Spark job, which average gradients among themselves."""

from pipelines.engines.horovod.engine import HorovodEngine

__all__ = ["HorovodEngine"]
