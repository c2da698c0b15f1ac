"""Spark frames in files that the driver and every executor see under the same path."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_PARTITIONS = "spark.sql.shuffle.partitions"
_WRITTEN = "written"


def read_path(path: Path) -> str:
    """The path as Spark's readers want it: with a scheme, and not taken for a glob."""
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


def write_path(path: Path) -> str:
    """The path as Spark's writers want it: with a scheme, whatever the default file system."""
    return f"file://{path}"


def write_single_file(frame: DataFrame, path: Path) -> None:
    """Writes a small table as one Parquet file."""
    parts = path.with_suffix(".parts")
    frame.coalesce(1).write.parquet(write_path(parts), compression="zstd")
    next(parts.glob("part-*")).rename(path)
    shutil.rmtree(parts)


@contextmanager
def batches_of(session: SparkSession, rows: int) -> Iterator[None]:
    """Gives Python at most so many rows in a batch while the block runs.

    The default of thousands is more memory than an executor has where rows are long texts.
    """
    before = session.conf.get(_BATCH_ROWS)
    session.conf.set(_BATCH_ROWS, str(rows))
    try:
        yield
    finally:
        session.conf.set(_BATCH_ROWS, before or "10000")


@contextmanager
def shuffle_partitions(session: SparkSession, least: int) -> Iterator[None]:
    """Raises the number of partitions that a shuffle makes while the block runs.

    A number that is no number (`auto` on Databricks) or high enough stays.
    """
    before = session.conf.get(_PARTITIONS)
    if before is None or not before.isdigit() or int(before) >= least:
        yield
        return
    session.conf.set(_PARTITIONS, str(least))
    try:
        yield
    finally:
        session.conf.set(_PARTITIONS, before)


@dataclass(frozen=True)
class Totals:
    """What is added up of the rows of a frame while they are written.

    Attributes:
        keys: One or more columns of strings; rows that agree in all of them are added up together.
        sums: Columns of int64 that are added up. The number of rows is, too, as `written`.
        numbers: Columns of int64 in which rows that are added up agree, too.
    """

    keys: tuple[str, ...]
    sums: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def ddl(self) -> str:
        """The columns of the totals, in Spark's words."""
        keys = [f"`{name}` string" for name in self.keys]
        longs = (*self.numbers, *self.sums, _WRITTEN)
        return ", ".join([*keys, *(f"`{name}` long" for name in longs)])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the totals: `keys`, `numbers`, `sums`, and `written`."""
        longs = [(name, pa.int64()) for name in (*self.numbers, *self.sums, _WRITTEN)]
        return pa.schema([*((name, pa.string()) for name in self.keys), *longs])

    def of(self, batch: pa.RecordBatch) -> pa.Table:
        """The totals of a batch of the frame. Runs on an executor."""
        columns = {name: batch[name] for name in (*self.keys, *self.numbers, *self.sums)}
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        return self.merged(pa.table({**columns, _WRITTEN: ones}, schema=self.schema))

    def merged(self, totals: pa.Table) -> pa.Table:
        """Totals of several parts as those of the whole; sums of nothing but nulls are null."""
        summed = (*self.sums, _WRITTEN)
        keys = (*self.keys, *self.numbers)
        grouped = totals.group_by(list(keys), use_threads=False)
        added = grouped.aggregate([(name, "sum") for name in summed])
        columns = {name: added[name] for name in keys}
        columns |= {name: added[f"{name}_sum"] for name in summed}
        return pa.table(columns, schema=self.schema)


@dataclass(frozen=True)
class Kept:
    """A frame that has been computed and lies in files.

    Attributes:
        path: The folder of the files.
        frame: Reads them in Spark.
        partitions: The rows of each partition that has any, by its number.
    """

    path: Path
    frame: DataFrame
    partitions: Mapping[int, int]

    @property
    def rows(self) -> int:
        """Of all partitions."""
        return sum(self.partitions.values())

    def to_arrow(self) -> pa.Table:
        """All rows, in this process: for frames that are known to be small."""
        return pq.read_table(self.path)


class Scratch:
    """Keeps intermediate frames as Parquet files, and removes them at the end.

    Each is computed once. Unlike a cache they survive a lost executor, and unlike a lineage
    they do not grow.

    Args:
        folder: Is made, and removed when the context is left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = 0

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Computes the frame; what is returned reads the result."""
        return self.keep_counted(frame).frame

    def keep_counted(self, frame: DataFrame) -> Kept:
        """As :meth:`keep`, with the number of rows, for which Spark runs no further job."""
        path = self._next_path()
        frame.write.parquet(write_path(path), compression="zstd")
        kept = frame.sparkSession.read.schema(frame.schema).parquet(read_path(path))
        return Kept(path, kept, rows_by_partition(path))

    def keep_arrow(
        self, frame: DataFrame, function: BatchFunction, schema: pa.Schema, totals: Totals
    ) -> tuple[DataFrame, pa.Table]:
        """Applies a function to Arrow batches and keeps what it gives; see :func:`write_arrow`.

        Returns:
            The kept frame, and the totals of all its rows.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        path = self._next_path()
        found = write_arrow(frame, function, schema, totals, path)
        spark_schema = from_arrow_schema(schema)
        return frame.sparkSession.read.schema(spark_schema).parquet(read_path(path)), found

    def _next_path(self) -> Path:
        self._frames += 1
        return self._folder / str(self._frames)


def write_arrow(
    frame: DataFrame, function: BatchFunction, schema: pa.Schema, totals: Totals, path: Path
) -> pa.Table:
    """Applies a function to Arrow batches, as `mapInArrow` does, and writes what it gives.

    The executors write the files themselves: the rows of the result cost the JVM nothing.

    Args:
        frame: Its partitions are the batches of one call each.
        function: From batches to batches.
        schema: Of the batches that it gives.
        totals: What to add up on the way.
        path: A folder that is made.

    Returns:
        The totals of all rows.
    """
    path.mkdir(parents=True)
    write = partial(
        _write_partition, function=function, schema=schema, totals=totals, folder=str(path)
    )
    rows = [row.asDict() for row in frame.mapInArrow(write, totals.ddl).collect()]
    found = totals.merged(pa.Table.from_pylist(rows, schema=totals.schema))
    written = sum(found[_WRITTEN].to_pylist())
    there = sum(rows_by_partition(path).values())
    if there != written:
        raise PipelineError(f"{path} holds {there} rows of the {written} that executors wrote")
    return found


def rows_by_partition(folder: Path) -> dict[int, int]:
    """The rows of a folder that Spark wrote, by the number of the partition; from the footers.

    A partition without rows may be missing.
    """
    rows: Counter[int] = Counter()
    for file in folder.glob("part-*.parquet"):
        found = re.match(r"part-(\d+)", file.name)
        assert found is not None, "Spark numbers its files"
        rows[int(found[1])] += pq.read_metadata(file).num_rows
    return dict(rows)


def _write_partition(
    batches: Iterator[pa.RecordBatch],
    *,
    function: BatchFunction,
    schema: pa.Schema,
    totals: Totals,
    folder: str,
) -> Iterator[pa.RecordBatch]:
    """Writes a file per partition, aside and then renamed. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    number, attempt = context.partitionId(), context.taskAttemptId()
    # A name that Spark passes over, so that a task that dies leaves nothing that is read.
    aside = Path(folder, f"_part-{number:05d}-{attempt}")
    found = totals.schema.empty_table()
    with pq.ParquetWriter(aside, schema, compression="zstd") as writer:
        for batch in function(batches):
            if batch.num_rows:
                writer.write_batch(batch)
                found = totals.merged(pa.concat_tables([found, totals.of(batch)]))
    aside.replace(Path(folder, f"part-{number:05d}.parquet"))
    yield from found.to_batches()
