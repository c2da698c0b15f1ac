"""A Spark job on a thread beside the one that watches it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext

Value = TypeVar("Value")

END_SECONDS = 20.0
"""How long a job that was cancelled, or whose work is done, may take to end."""


class JobThread(threading.Thread, Generic[Value]):
    """Runs a Spark job that another thread can cancel.

    Args:
        context: Where it runs.
        name: Of the thread.
        description: What the job is, for Spark's pages.
        act: Starts the job, and returns when it has ended.

    Attributes:
        group: Spark's job group of the job.
        error: What ``act`` has raised, for the thread that watches.
    """

    def __init__(
        self, context: SparkContext, name: str, description: str, act: Callable[[], Value]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._context = context
        self._description = description
        self._act = act
        # Names this job alone, so that cancelling it leaves others of the session running.
        self.group = f"{name}-{uuid.uuid4().hex[:8]}"
        self._values: list[Value] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs the job."""
        try:
            self._context.setJobGroup(self.group, self._description, interruptOnCancel=True)
            self._values.append(self._act())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that watches
            self.error = error

    def cancel(self) -> None:
        """Has Spark end the job."""
        self._context.cancelJobGroup(self.group)

    def value(self) -> Value:
        """What ``act`` returned; raises its error. The job has ended."""
        if self.error is not None:
            raise self.error
        return self._values[0]
