"""Spark frames in files that the driver and every executor see under the same path."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
