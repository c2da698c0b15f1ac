"""A Spark job that is cancelled when it makes no progress any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.errors import PipelineError
from pipelines.spark.job_thread import END_SECONDS, JobThread, Value

if TYPE_CHECKING:
    from pyspark import SparkContext

STALL_SECONDS = 3600.0
"""A task writes to its file every few thousand rows. The longest texts of the largest models take
minutes for these on one core; an executor that hangs takes for ever."""
POLL_SECONDS = 1.0


def run_with_timeout(
    context: SparkContext,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object],
    stall_seconds: float = STALL_SECONDS,
) -> Value:
    """Runs a Spark job, and cancels it when it makes no progress.

    Args:
        context: Where the job runs.
        name: What it is, on Spark's pages and in the error.
        act: Starts it, and returns when it has ended.
        state: Called every second; its value changes as the job makes progress, and an error of it
            ends the job.
        stall_seconds: How long the value may stay the same.

    Returns:
        What ``act`` returned; its errors pass.

    Raises:
        PipelineError: No progress was made for so long.
    """
    job = JobThread(context, name, name, act)
    job.start()
    try:
        seen, since = state(), time.monotonic()
        while job.is_alive():
            job.join(POLL_SECONDS)
            if (now := state()) != seen:
                seen, since = now, time.monotonic()
            elif job.is_alive() and time.monotonic() - since > stall_seconds:
                raise PipelineError(
                    f"{name} was called off: nothing was written for {stall_seconds:.0f} s; "
                    "see the executors' logs"
                )
    finally:
        if job.is_alive():
            job.cancel()
            job.join(END_SECONDS)
    return job.value()
