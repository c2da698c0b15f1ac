"""The sizes of steps, which executors report to the driver in an accumulator."""

from __future__ import annotations

from pyspark import AccumulatorParam

from pipelines.engines.bigdl.feeding import Sizes


class SizesParam(AccumulatorParam[Sizes]):
    """A dict that grows; what Spark computes a second time overwrites the same values."""

    def zero(self, value: Sizes) -> Sizes:
        """An empty dict."""
        return {}

    def addInPlace(self, value1: Sizes, value2: Sizes) -> Sizes:  # noqa: N802 - Spark's name
        """Merges the second into the first."""
        value1.update(value2)
        return value1
