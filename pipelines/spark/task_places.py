"""Which task of a Spark job has failed, and where its tasks are. Runs on the driver."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkContext

_MOST_TASKS = 10_000
_FAILED_TASK = re.compile(r"barrier task \w+\(\d+, (\d+)\)|Lost task (\d+)\.\d+ in stage")
"""Spark's `Stage failed because barrier task ResultTask(3, 1) finished unsuccessfully`, of which 1
is the partition, and `Lost task 1.0 in stage 3.0`."""


class TaskPlace(NamedTuple):
    """A task of a job.

    Attributes:
        partition: Its number in the stage.
        host: That it is, or was, on; as Spark knows it, mostly its address.
    """

    partition: int
    host: str


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


def failed_partition(message: str) -> int | None:
    """The number of the task that a job has failed with, by Spark's message; none if it has none.

    Of a barrier stage Spark ends the other tasks too, and these count as failed as well.
    """
    found = _FAILED_TASK.search(message)
    return int(found[1] or found[2]) if found else None


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
            found.append(TaskPlace(task.index(), str(task.host())))
    return found


def _status_store(context: SparkContext) -> Any:
    return context._jsc.sc().statusStore()
