"""Spark frames in files that the driver and every executor see under the same path."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        path = self._folder / str(self._frames)
        self._frames += 1
        frame.write.parquet(write_path(path), compression="zstd")
        return frame.sparkSession.read.schema(frame.schema).parquet(read_path(path))

    def keep_arrow(self, frame: DataFrame, function: BatchFunction, schema: pa.Schema) -> DataFrame:
        """Applies a function to Arrow batches, as `mapInArrow` does, and keeps what it gives.

        The executors write the files themselves: the rows of the result cost the JVM nothing.

        Args:
            frame: Its partitions are the batches of one call each.
            function: From batches to batches.
            schema: Of the batches that it gives.
        """
        path = self._folder / str(self._frames)
        self._frames += 1
        path.mkdir(parents=True)
        write = partial(_write_partition, function=function, schema=schema, folder=str(path))
        written = sum(row["rows"] for row in frame.mapInArrow(write, "rows long").collect())
        there = sum(pq.read_metadata(part).num_rows for part in path.glob("part-*"))
        if there != written:
            raise PipelineError(f"{path} holds {there} rows of the {written} that executors wrote")
        return frame.sparkSession.read.parquet(read_path(path))


def _write_partition(
    batches: Iterator[pa.RecordBatch], *, function: BatchFunction, schema: pa.Schema, folder: str
) -> Iterator[pa.RecordBatch]:
    """Writes a file per partition, aside and then renamed. Runs on an executor."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    number, attempt = context.partitionId(), context.taskAttemptId()
    # A name that Spark passes over, so that a task that dies leaves nothing that is read.
    aside = Path(folder, f"_part-{number:05d}-{attempt}")
    rows = 0
    with pq.ParquetWriter(aside, schema, compression="zstd") as writer:
        for batch in function(batches):
            if batch.num_rows:
                writer.write_batch(batch)
                rows += batch.num_rows
    aside.replace(Path(folder, f"part-{number:05d}.parquet"))
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})
