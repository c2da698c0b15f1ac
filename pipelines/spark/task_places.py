"""Where the tasks of a Spark job are, and which of them has failed. Runs on the driver."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkContext

FAILED = "FAILED"
_MOST_TASKS = 10_000


class TaskPlace(NamedTuple):
    """A task of a job.

    Attributes:
        partition: Its number in the stage.
        host: That it is, or was, on; as Spark knows it, mostly its address.
        status: As Spark calls it: `RUNNING`, :data:`FAILED`, `KILLED`, `SUCCESS`.
        ended: When, in milliseconds by the driver's clock; 0 as long as it runs.
    """

    partition: int
    host: str
    status: str
    ended: int


def task_places(context: SparkContext, group: str) -> list[TaskPlace]:
    """The tasks of the newest job of a group; none if Spark has ended, or forgotten the job.

    Args:
        group: Of :class:`pipelines.spark.job_thread.JobThread`.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return _task_places(context, group)
    except (Py4JError, OSError):
        return []


def failed_task(context: SparkContext, group: str) -> TaskPlace | None:
    """The task that a job has failed with, which is the first; none if that is not known.

    Of a barrier stage Spark ends the others, and these may fail by that.
    """
    failed = [one for one in task_places(context, group) if one.status == FAILED]
    return min(failed, key=lambda one: one.ended, default=None)


def host_of_task(context: SparkContext, group: str, partition: int | None) -> str | None:
    """Name of the host that a task of a job is on; none if that is not known."""
    hosts = [one.host for one in task_places(context, group) if one.partition == partition]
    return name_of(hosts[-1]) if hosts else None


def name_of(host: str) -> str:
    """The name of a host that Spark knows by its address, where the driver can look it up."""
    try:
        return socket.gethostbyaddr(host)[0]
    except OSError:
        return host


def _task_places(context: SparkContext, group: str) -> list[TaskPlace]:
    tracker, store = context.statusTracker(), _status_store(context)
    jobs = sorted(tracker.getJobIdsForGroup(group))
    job = tracker.getJobInfo(jobs[-1]) if jobs else None
    found = []
    for stage in [] if job is None else job.stageIds:
        tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _MOST_TASKS)
        for place in range(tasks.size()):
            task = tasks.apply(place)
            took = task.duration()
            ended = task.launchTime().getTime() + int(took.get()) if took.isDefined() else 0
            found.append(TaskPlace(task.index(), str(task.host()), str(task.status()), ended))
    return found


def _status_store(context: SparkContext) -> Any:
    return context._jsc.sc().statusStore()
