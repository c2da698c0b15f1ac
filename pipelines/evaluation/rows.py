"""The rows of an evaluation: on Spark's executors, or in this process.

An evaluation is written once, as functions of record batches. Executors run them for
:class:`SparkRows`. :class:`LocalRows` runs them in this process, for checkpoints: workers hold the
executors meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from pipelines.spark.capacity import Shared, default_parallelism, has_partitions, shared_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCH_ROWS = 1024
"""Rows of a batch in this process."""

Value = TypeVar("Value")
Batches: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
"""The argument of Spark's `mapInArrow`."""
Tables: TypeAlias = "Mapping[str, DataFrame]"
"""The tables of a set, by the names of its evaluation."""


class Row(Protocol):
    """Values by column: a row of Spark, or a dictionary."""

    def __getitem__(self, column: str, /) -> Any: ...

    def __contains__(self, column: object, /) -> bool: ...


class Rows(Protocol):
    """The rows of a table."""

    def count(self) -> int:
        """Return the number of rows."""
        ...

    def collect(self) -> Sequence[Row]:
        """Return all rows."""
        ...

    def map(self, work: Batches, schema: str) -> Sequence[Row]:
        """Return a function's rows; it maps the batches of each task.

        The schema of its batches is written as in Spark: ``pair long, cosine double``.
        """
        ...

    def best(self, work: Batches, schema: str, groups: Sequence[str], depth: int) -> Sequence[Row]:
        """Return a function's rows of highest ``score``, in any order.

        Args:
            work: Gives the best rows of each group among its own batches.
            schema: As for :meth:`map`; has ``document_id`` and ``score``.
            groups: Columns; rows of equal values are a group.
            depth: Rows of a group; the lower id wins a tie.
        """
        ...

    def shared(self, value: Value) -> AbstractContextManager[Shared[Value]]:
        """Share a value with functions, inside the block."""
        ...


@dataclass(frozen=True)
class SparkRows:
    """Rows of a data frame on the executors; see :class:`Rows`."""

    frame: DataFrame

    def count(self) -> int:
        """Count the rows on the executors."""
        return self.frame.count()

    def collect(self) -> Sequence[Row]:
        """Collect the rows on the driver."""
        return self.frame.collect()

    def map(self, work: Batches, schema: str) -> Sequence[Row]:
        """Collect the executors' rows on the driver."""
        return self.frame.mapInArrow(work, schema).collect()

    def best(self, work: Batches, schema: str, groups: Sequence[str], depth: int) -> Sequence[Row]:
        """Have the executors merge the best rows of all tasks."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

        best_first = Window.partitionBy(*groups).orderBy(F.desc("score"), F.asc("document_id"))
        found = self.frame.mapInArrow(work, schema)
        ranked = found.withColumn("rank", F.row_number().over(best_first))
        return ranked.where(F.col("rank") <= depth).collect()

    def shared(self, value: Value) -> AbstractContextManager[Shared[Value]]:
        """Broadcast a value."""
        return shared_value(self.frame.sparkSession, value)


@dataclass(frozen=True)
class LocalRows:
    """Rows of this process, read batch by batch, as often as needed; see :class:`Rows`."""

    batches: Callable[[], Iterable[pa.RecordBatch]]

    def count(self) -> int:
        """Read and count the rows."""
        return sum(batch.num_rows for batch in self.batches())

    def collect(self) -> Sequence[Row]:
        """Read the rows."""
        return self.map(iter, "")

    def map(self, work: Batches, schema: str) -> Sequence[Row]:
        """Return the function's rows of all batches."""
        return [row for batch in work(self.batches()) for row in batch.to_pylist()]

    def best(self, work: Batches, schema: str, groups: Sequence[str], depth: int) -> Sequence[Row]:
        """Return the function's rows: the best of all batches are the best of all."""
        return self.map(work, schema)

    def shared(self, value: Value) -> AbstractContextManager[Shared[Value]]:
        """Return the value itself, wrapped: a single process needs no broadcast."""
        return nullcontext(Shared(value))


def spread(table: DataFrame) -> DataFrame:
    """Return the rows in at least one partition a core: Spark reads a small file as one.

    Pass a table before any shuffle: Spark would compute the shuffle to count its partitions.
    """
    cores = cores_for(table)
    return table if has_partitions(table, cores) else table.repartition(cores)


def cores_for(frame: DataFrame) -> int:
    """Return the number of cores of a frame's session."""
    return default_parallelism(frame.sparkSession)
