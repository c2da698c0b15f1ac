"""A Spark job on a thread beside the one that watches it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from pipelines.spark.access_mode import is_connected

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Value = TypeVar("Value")

END_SECONDS = 20.0
"""How long a job that was cancelled, or whose work is done, may take to end."""


class JobGroups(Protocol):
    """How jobs are told apart, so that one of them can be cancelled."""

    def begin(self, group: str, description: str) -> None:
        """What this thread starts from now on belongs to a group."""

    def cancel(self, group: str) -> None:
        """Ends what runs of a group."""


@dataclass(frozen=True)
class ContextGroups:
    """Job groups of a SparkContext."""

    context: SparkContext

    def begin(self, group: str, description: str) -> None:
        """See :class:`JobGroups`."""
        self.context.setJobGroup(group, description, interruptOnCancel=True)

    def cancel(self, group: str) -> None:
        """See :class:`JobGroups`."""
        self.context.cancelJobGroup(group)


@dataclass(frozen=True)
class OperationTags:
    """Tags of the operations of a session of Spark Connect, which have no descriptions."""

    session: SparkSession

    def begin(self, group: str, description: str) -> None:
        """See :class:`JobGroups`."""
        self.session.addTag(_tag(group))

    def cancel(self, group: str) -> None:
        """See :class:`JobGroups`."""
        self.session.interruptTag(_tag(group))


def _tag(group: str) -> str:
    """A group as a tag, which holds no comma."""
    return group.replace(",", " ")


def groups_of(session: SparkSession) -> JobGroups:
    """How the jobs of a session are told apart."""
    return OperationTags(session) if is_connected() else ContextGroups(session.sparkContext)


class JobThread(threading.Thread, Generic[Value]):
    """Runs a Spark job that another thread can cancel.

    Args:
        groups: Of where it runs.
        name: Of the thread.
        description: What the job is, for Spark's pages.
        act: Starts the job, and returns when it has ended.

    Attributes:
        group: Spark's name for the job.
        error: What ``act`` has raised, for the thread that watches.
    """

    def __init__(
        self, groups: JobGroups, name: str, description: str, act: Callable[[], Value]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._groups = groups
        self._description = description
        self._act = act
        # Names this job alone, so that cancelling it leaves others of the session running.
        self.group = f"{name}-{uuid.uuid4().hex[:8]}"
        self._values: list[Value] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Runs the job."""
        try:
            self._groups.begin(self.group, self._description)
            self._values.append(self._act())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that watches
            self.error = error

    def cancel(self) -> None:
        """Has Spark end the job."""
        self._groups.cancel(self.group)

    def value(self) -> Value:
        """What ``act`` returned; raises its error. The job has ended."""
        if self.error is not None:
            raise self.error
        return self._values[0]
