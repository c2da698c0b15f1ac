"""Jobs of Spark that make a table: each with a deadline, and its errors as one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pipelines.spark.errors import executor_failures
from pipelines.spark.jobs import run_with_timeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = TypeVar("Value")


def run_job(
    session: SparkSession,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object] | None = None,
    ending: str = "",
) -> Value:
    """Has Spark do a job.

    Args:
        session: Does it.
        name: What it is.
        act: Starts it, and returns when it has ended.
        state: Changes as it makes progress; by default what Spark says of its tasks.
        ending: Of the line of an error: what has been kept.

    Raises:
        PipelineError: A task failed as often as Spark tries, or nothing moved any more.
    """
    with executor_failures(name, ending):
        return run_with_timeout(session, name, act, state)
