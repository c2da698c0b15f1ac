"""Elephas: a Spark job of workers around a parameter server in the driver."""

from pipelines.engines.elephas.engine import ElephasEngine

__all__ = ["ElephasEngine"]
