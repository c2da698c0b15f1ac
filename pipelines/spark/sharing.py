"""Values that every task of a job needs, as executors get them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pipelines.errors import InputError
from pipelines.spark.access_mode import is_connected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = TypeVar("Value")

MOST_BYTES = 96 * 2**20
"""That a function may bring along in Spark Connect, whose messages have at most 128 MiB."""


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value that functions bring along to where they run.

    A broadcast of Spark has the same attribute, and reaches each executor once.

    Attributes:
        value: What is shared.
    """

    value: Value


@contextmanager
def shared_value(session: SparkSession, value: Value) -> Iterator[Shared[Value]]:
    """Shares a value with the tasks of jobs that are run inside the block.

    Args:
        session: Of the jobs.
        value: Is pickled.

    Raises:
        InputError: It is too large for a session of Spark Connect, which has no broadcasts.
    """
    if not is_connected():
        broadcast: Any = session.sparkContext.broadcast(value)
        try:
            yield cast("Shared[Value]", broadcast)
        finally:
            broadcast.destroy()
        return
    size = len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    if size > MOST_BYTES:
        raise InputError(
            "spark.master",
            f"tasks need {size / 2**20:.0f} MiB that a session of Spark Connect cannot send them",
            f"ask fewer queries at a time (up to {MOST_BYTES >> 20} MiB of vectors), or run it on "
            "a cluster of dedicated access mode",
        )
    yield Shared(value)
