"""Plain tasks on the executors, in any session: with a SparkContext, or of Spark Connect."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from pipelines.spark.capacity import is_connected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = TypeVar("Task")
Result = TypeVar("Result")
Value = TypeVar("Value")

_ROW = "value"


def slices(values: Sequence[Value], most: int) -> list[Sequence[Value]]:
    """Cut values into at most so many runs of nearly equal length, none empty."""
    count = min(len(values), most)
    ends = [len(values) * number // count for number in range(count + 1)] if count else []
    return [values[start:end] for start, end in pairwise(ends)]


def collect_from_tasks(
    session: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Iterator[Task]], Iterator[Result]],
) -> list[Result]:
    """Run tasks, plain values with a partition each, and collect their results in order.

    ``work`` runs on an executor; it gets one task and yields few values, which pickle can write.
    Without Spark Connect this is an RDD job: in a fresh session a job of Spark SQL costs several
    CPU seconds more, to load its Java classes and pandas.
    """
    if is_connected():
        frame = frame_from_tasks(session, tasks, partial(_pickled, work=work), f"{_ROW} binary")
        return [pickle.loads(row[_ROW]) for row in frame.collect()]
    partitions = session.sparkContext.parallelize(tasks, len(tasks))
    return partitions.mapPartitions(lambda partition: work(iter(partition))).collect()


def _pickled(
    tasks: Iterator[Any], *, work: Callable[[Iterator[Any]], Iterator[Any]]
) -> Iterator[pa.RecordBatch]:
    """Yield the results of tasks as rows. Runs on an executor."""
    rows = [pickle.dumps(result) for result in work(tasks)]
    yield pa.RecordBatch.from_arrays([pa.array(rows, pa.binary())], names=[_ROW])


def frame_from_tasks(
    session: SparkSession,
    tasks: Sequence[Task],
    work: Callable[[Iterator[Task]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """Run tasks, plain values with a partition each, and make a frame of the rows they yield.

    ``work`` runs on an executor and gets one task.
    """
    # All tasks travel with the function. Each is packed, so a Python worker unpacks only its own.
    packed = [zlib.compress(pickle.dumps(task), 1) for task in tasks]
    numbers = session.range(0, len(packed), 1, len(packed))
    return numbers.mapInArrow(partial(_work_on_numbers, packed=packed, work=work), schema)


def _work_on_numbers(
    batches: Iterator[pa.RecordBatch],
    *,
    packed: Sequence[bytes],
    work: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Do the tasks by the numbers in the column `id`. Runs on an executor."""
    numbers = (number for batch in batches for number in batch.column("id").to_pylist())
    return work(pickle.loads(zlib.decompress(packed[number])) for number in numbers)
