"""A Spark job that is cancelled when it makes no progress any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipelines.errors import PipelineError
from pipelines.spark.access_mode import is_connected, tells_tasks
from pipelines.spark.job_thread import END_SECONDS, JobThread, Value, groups_of
from pipelines.spark.session import running_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STALL_SECONDS = 3600.0
"""A task writes to its file every few thousand rows. The longest texts of the largest models take
minutes for these on one core; an executor that hangs takes for ever."""
BLIND_SECONDS = 86400.0
"""The same of a job whose progress cannot be seen: as long as any of them should take."""
POLL_SECONDS = 1.0


def run_with_timeout(
    session: SparkSession,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object] | None = None,
    stall_seconds: float | None = None,
) -> Value:
    """Runs a Spark job, and cancels it when it makes no progress.

    Args:
        session: Where the job runs.
        name: What it is, on Spark's pages and in the error.
        act: Starts it, and returns when it has ended.
        state: Called every second; its value changes as the job makes progress, and an error of it
            ends the job. By default what Spark says of its tasks.
        stall_seconds: How long the value may stay the same; by default :data:`STALL_SECONDS`, and
            :data:`BLIND_SECONDS` where Spark says nothing of its tasks.

    Returns:
        What ``act`` returned; its errors pass.

    Raises:
        PipelineError: No progress was made for so long.
    """
    if stall_seconds is None:
        sees = state is not None or not is_connected() or tells_tasks(session)
        stall_seconds = STALL_SECONDS if sees else BLIND_SECONDS
    state = state or running_tasks
    job = JobThread(groups_of(session), name, name, act)
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
