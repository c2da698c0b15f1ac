"""A Spark job that is called off when nothing of it moves any more."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from pipelines.errors import PipelineError

if TYPE_CHECKING:
    from pyspark import SparkContext

Value = TypeVar("Value")

STALL_SECONDS = 3600.0
"""A task writes to its file every few thousand rows. The longest texts of the largest models take
minutes for these on one core; an executor that hangs takes for ever."""
POLL_SECONDS = 1.0
END_SECONDS = 20.0


def run_watched(
    context: SparkContext,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object],
    stall_seconds: float = STALL_SECONDS,
) -> Value:
    """Does what starts a Spark job, and ends the job when it stands still.

    Args:
        context: Where the job runs.
        name: What it is, on Spark's pages and in the error.
        act: Starts it, and returns when it has ended.
        state: Asked every second; what it gives changes as the job moves, and an error of it
            ends the job.
        stall_seconds: For which it may stay the same.

    Returns:
        What ``act`` returned; its errors pass.

    Raises:
        PipelineError: Nothing moved for so long.
    """
    job = _Job(context, name, act)
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
        job.call_off()
    return job.value()


class _Job(threading.Thread, Generic[Value]):
    def __init__(self, context: SparkContext, name: str, act: Callable[[], Value]) -> None:
        super().__init__(name=name, daemon=True)
        self._context = context
        self._act = act
        self._group = f"{name}-{uuid.uuid4().hex[:8]}"
        self._values: list[Value] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self.name, interruptOnCancel=True)
            self._values.append(self._act())
        except BaseException as error:  # noqa: BLE001 - carried to the waiting thread
            self._failure = error

    def call_off(self) -> None:
        """Has Spark end the job if it runs still."""
        if self.is_alive():
            self._context.cancelJobGroup(self._group)
            self.join(END_SECONDS)

    def value(self) -> Value:
        if self._failure is not None:
            raise self._failure
        return self._values[0]
