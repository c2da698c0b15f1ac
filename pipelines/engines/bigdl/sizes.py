"""The sizes of steps, as executors tell them to the driver."""

from __future__ import annotations

from pyspark import AccumulatorParam

from pipelines.engines.bigdl.feeding import Sizes


class SizesParam(AccumulatorParam[Sizes]):
    """A dict that grows; what Spark computes once more stands there already."""

    def zero(self, value: Sizes) -> Sizes:
        """An empty dict."""
        return {}

    def addInPlace(self, value1: Sizes, value2: Sizes) -> Sizes:  # noqa: N802 - Spark's name
        """Puts the second into the first."""
        value1.update(value2)
        return value1
