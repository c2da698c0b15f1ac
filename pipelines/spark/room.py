"""Room for the workers of a training on a cluster, which may still have to start it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.errors import EngineUnavailable
from pipelines.progress import activity
from pipelines.spark.job_thread import END_SECONDS, ContextGroups, JobThread
from pipelines.spark.session import executor_count, in_one_process, kept_spark_log
from pipelines.spark.stage_resources import StageResources, resource_profile

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<executors>\d+)")


def task_slots(context: SparkContext, profile: ResourceProfile | None = None) -> int:
    """Tasks that can run at once on the executors that are there now.

    Args:
        profile: Of the tasks; by default the session's.
    """
    spark = context._jsc.sc()
    if profile is None:
        return int(
            spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
        )
    return int(spark.maxNumConcurrentTasks(profile._java_resource_profile))


def ranks_of(context: SparkContext, ranks: int, profile: ResourceProfile | None) -> RDD[int]:
    """The numbers from 0 on, one a task of the profile."""
    return with_profile(context.parallelize(range(ranks), ranks), profile)


def with_profile(rdd: RDD[int], profile: ResourceProfile | None) -> RDD[int]:
    """An RDD whose tasks have the resources of a profile; the session's if there is none."""
    return rdd if profile is None else rdd.withResources(profile)


def await_slots(
    session: SparkSession, wanted: int, seconds: float, resources: StageResources
) -> int:
    """Waits until tasks can run at once, since a cluster may still be starting executors.

    Args:
        wanted: How many tasks.
        seconds: The longest to wait.
        resources: Of the tasks.

    Returns:
        How many can in the end.

    Raises:
        EngineUnavailable: Spark has ended the session.
    """
    context, profile = session.sparkContext, resource_profile(resources)
    if not resources.dynamic:
        return await_room(session, wanted, lambda: task_slots(context, profile), seconds)
    # Spark starts executors for tasks that wait, and for nothing else.
    tasks = _WaitingTasks(context, wanted, seconds, profile)
    try:
        tasks.start()
        return await_room(session, wanted, tasks.running, seconds, dynamic=True)
    finally:
        tasks.end()


def await_room(
    session: SparkSession,
    wanted: int,
    count: Callable[[], int],
    seconds: float,
    *,
    dynamic: bool = False,
) -> int:
    """Waits until there is room on the cluster.

    Args:
        session: Of the cluster.
        wanted: How much room.
        count: How much there is now.
        seconds: The longest to wait.
        dynamic: Whether Spark starts further executors as they are needed.

    Returns:
        How much there is in the end.

    Raises:
        EngineUnavailable: Spark has ended the session, as it does where no master accepts it.
    """
    context, began, there = session.sparkContext, time.monotonic(), 0

    def state() -> str:
        return f"{there} of {wanted} are there"

    with activity("training", "waiting for executors", state):
        while not context._jsc.sc().isStopped():
            # Asked before counting: an executor that comes between the two is counted then.
            may_grow = dynamic or _may_grow(session)
            there = count()
            if there >= wanted or not may_grow or time.monotonic() - began > seconds:
                return there
            time.sleep(POLL_SECONDS)
    log = kept_spark_log()
    raise EngineUnavailable(
        "spark.master",
        f"Spark has ended the session on {context.master}, which did not take it",
        f"see {log or 'the log of the driver'}",
    )


def _may_grow(session: SparkSession) -> bool:
    """Whether executors may come that are not there; on one machine their number is known."""
    master = session.sparkContext.master or ""
    if local := _LOCAL_CLUSTER.match(master):
        return executor_count(session) < int(local["executors"])
    return not in_one_process(master)


@dataclass
class _WaitingTasks:
    """Tasks that do nothing, so that Spark starts executors for as many.

    Attributes:
        context: Where they run.
        tasks: How many.
        seconds: How long each lives at most.
        profile: Of the tasks.
    """

    context: SparkContext
    tasks: int
    seconds: float
    profile: ResourceProfile | None

    def start(self) -> None:
        """Has Spark run them."""
        numbers = ranks_of(self.context, self.tasks, self.profile)
        seconds = self.seconds

        def sleep(_: Iterable[int]) -> None:
            time.sleep(seconds)

        name = "executors for a training"
        groups = ContextGroups(self.context)
        self._job = JobThread(groups, name, name, lambda: numbers.foreachPartition(sleep))
        self._job.start()

    def running(self) -> int:
        """How many run now."""
        tracker, found = self.context.statusTracker(), 0
        for job in tracker.getJobIdsForGroup(self._job.group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info else ():
                active = tracker.getStageInfo(stage)
                found += active.numActiveTasks if active else 0
        return found

    def end(self) -> None:
        """Ends them; their executors stay for a while."""
        self._job.cancel()
        self._job.join(END_SECONDS)
