"""Spark's jobs, with deadlines: for executors to come, for progress, and for the end.

Spark gives up silent executors, but not one with hanging tasks, for instance at a dead mount: it
goes on sending heartbeats, and its job would wait for ever. So would a job with no executor left.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipelines.errors import EngineError, EngineUnavailable, PipelineError
from pipelines.files.folders import JobDecorator, around_job
from pipelines.libraries import is_installed
from pipelines.progress import activity
from pipelines.settings.spark import SparkSettings
from pipelines.spark.capacity import is_connected, tells_tasks
from pipelines.spark.daemon import PRELOAD
from pipelines.spark.errors import (
    failed_partition,
    host_of_task,
    java_items,
    name_of,
    spark_cause,
)
from pipelines.spark.session import (
    active_context,
    active_stages,
    executor_count,
    executors_of,
    in_one_process,
    kept_spark_log,
    running_tasks,
)
from pipelines.spark.stage_resources import StageResources, resource_profile

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession
    from pyspark.status import SparkStageInfo


logger = logging.getLogger(__name__)

Value = TypeVar("Value")

END_SECONDS = 20.0
"""How long a job may take to end after it was cancelled, or its work is done."""
UNPACK_SECONDS = 600.0
# The connections of an executor that is lost are closed at once.
SETTLE_SECONDS = 5.0
STALL_SECONDS = 3600.0
"""How long a job may make no progress.

A task writes to its file every few thousand rows. The longest texts of the largest models take
minutes for these on one core; an executor that hangs takes for ever.
"""
BLIND_SECONDS = 86400.0
"""The same for a job with invisible progress: the longest time that any job should take."""
ROOM_POLL_SECONDS = 0.2
POLL_SECONDS = 1.0
STALL_POLL_SECONDS = 2.0
ROLE = "SENTENCE_PIPELINES_ROLE"
KEY, WAIT_KEY = "spark.stall_seconds", "spark.wait_seconds"
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(?P<executors>\d+)")
_MOST_TASKS = 10_000
"""The tasks of a stage that are searched for running ones."""


class JobThread(threading.Thread, Generic[Value]):
    """Runs a Spark job; another thread can cancel it.

    Args:
        place: The context, or the session where that is one of Spark Connect, whose operations
            have tags without descriptions, and no groups.

    Attributes:
        group: Spark's name for the job.
        error: The error of ``act``, for the watching thread.
    """

    def __init__(
        self,
        place: SparkContext | SparkSession,
        name: str,
        description: str,
        act: Callable[[], Value],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._place: Any = place
        self._is_connected = is_connected()
        self._description = description
        self._act = act
        # Unique, so that a cancellation leaves the session's other jobs running. A tag holds no
        # comma.
        self.group = f"{name.replace(',', ' ')}-{uuid.uuid4().hex[:8]}"
        self._values: list[Value] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run the job."""
        try:
            # Here, since tags and job groups belong to the thread that sets them.
            if self._is_connected:
                self._place.addTag(self.group)
            else:
                self._place.setJobGroup(self.group, self._description, interruptOnCancel=True)
            self._values.append(self._act())
        except BaseException as error:  # noqa: BLE001 - carried to the thread that watches
            self.error = error

    def cancel(self) -> None:
        """Cancel the job in Spark."""
        if self._is_connected:
            self._place.interruptTag(self.group)
        else:
            self._place.cancelJobGroup(self.group)

    def value(self) -> Value:
        """Return the result of ``act``, or raise its error, once the job has ended."""
        if self.error is not None:
            raise self.error
        return self._values[0]


def task_slots(context: SparkContext, profile: ResourceProfile | None = None) -> int:
    """Return how many tasks can run at once on the present executors."""
    # PySpark has no API for this number.
    spark = context._jsc.sc()
    if profile is None:
        return int(
            spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
        )
    return int(spark.maxNumConcurrentTasks(profile._java_resource_profile))


def ranks_of(context: SparkContext, ranks: int, profile: ResourceProfile | None) -> RDD[int]:
    """Return the numbers from 0 on, one per task of the profile."""
    return with_profile(context.parallelize(range(ranks), ranks), profile)


def with_profile(rdd: RDD[int], profile: ResourceProfile | None) -> RDD[int]:
    """Return an RDD with a profile's resources for its tasks; by default the session's."""
    return rdd if profile is None else rdd.withResources(profile)


def await_slots(
    session: SparkSession, wanted: int, seconds: float, resources: StageResources
) -> int:
    """Wait for executors until enough tasks can run at once; return how many can in the end.

    Raises:
        EngineUnavailable: Spark has ended the session.
    """
    context, profile = session.sparkContext, resource_profile(resources)
    if not resources.dynamic:
        return await_room(session, wanted, lambda: task_slots(context, profile), seconds)
    # Dynamic allocation starts executors for waiting tasks, and for nothing else.
    with _waiting_tasks(context, wanted, seconds, profile) as running:
        return await_room(session, wanted, running, seconds, dynamic=True)


def await_room(
    session: SparkSession,
    wanted: int,
    count: Callable[[], int],
    seconds: float,
    *,
    dynamic: bool = False,
) -> int:
    """Wait until there is room on the cluster, and return how much there is in the end.

    ``dynamic`` says whether Spark starts further executors on demand.

    Raises:
        EngineUnavailable: Spark has ended the session, as it does if no master accepts it.
    """
    context, began, found = session.sparkContext, time.monotonic(), 0

    def state() -> str:
        return f"{found} of {wanted} are there"

    with activity("training", "waiting for executors", state):
        while not context._jsc.sc().isStopped():
            # Asked before counting: the count then includes an executor that comes in between.
            may_grow = dynamic or _may_grow(session)
            found = count()
            if found >= wanted or not may_grow or time.monotonic() - began > seconds:
                return found
            time.sleep(ROOM_POLL_SECONDS)
    log = kept_spark_log()
    raise EngineUnavailable(
        "spark.master",
        f"Spark has ended the session on {context.master}, which did not accept it",
        f"See {log or 'the log of the driver'}",
    )


def _may_grow(session: SparkSession) -> bool:
    """Return whether more executors may come: on one machine all are known."""
    master = session.sparkContext.master or ""
    if local := _LOCAL_CLUSTER.match(master):
        return executor_count(session) < int(local["executors"])
    return not in_one_process(master)


@contextmanager
def _waiting_tasks(
    context: SparkContext, tasks: int, seconds: float, profile: ResourceProfile | None
) -> Iterator[Callable[[], int]]:
    """Yield the count of idle tasks; Spark starts executors for them, and keeps these a while."""
    numbers, name = ranks_of(context, tasks, profile), "executors for a training"

    def sleep(_: Iterable[int]) -> None:
        time.sleep(seconds)

    def running() -> int:
        tracker, found = context.statusTracker(), 0
        for number in tracker.getJobIdsForGroup(job.group):
            info = tracker.getJobInfo(number)
            for stage in info.stageIds if info else ():
                active = tracker.getStageInfo(stage)
                found += active.numActiveTasks if active else 0
        return found

    job = JobThread(context, name, name, lambda: numbers.foreachPartition(sleep))
    job.start()
    try:
        yield running
    finally:
        job.cancel()
        job.join(END_SECONDS)


def run_with_timeout(
    session: SparkSession,
    name: str,
    act: Callable[[], Value],
    state: Callable[[], object] | None = None,
    stall_seconds: float | None = None,
) -> Value:
    """Return the result of a Spark job, or raise its error; cancel it when it makes no progress.

    Args:
        state: Called every second; its value changes as the job makes progress, and its error
            ends the job. By default Spark's report on its tasks.
        stall_seconds: How long the value may stay the same; by default :data:`STALL_SECONDS`, and
            :data:`BLIND_SECONDS` if Spark reports nothing of its tasks.

    Raises:
        PipelineError: No progress was made for so long.
    """
    if stall_seconds is None:
        sees = state is not None or not is_connected() or tells_tasks(session)
        stall_seconds = STALL_SECONDS if sees else BLIND_SECONDS
    state = state or running_tasks
    job = JobThread(session if is_connected() else session.sparkContext, name, name, act)
    job.start()
    try:
        seen, since = state(), time.monotonic()
        while job.is_alive():
            job.join(POLL_SECONDS)
            if (now := state()) != seen:
                seen, since = now, time.monotonic()
            elif job.is_alive() and time.monotonic() - since > stall_seconds:
                raise PipelineError(
                    f"{name} was cancelled: its tasks wrote nothing for {stall_seconds:.0f} s. "
                    "See the executors' logs."
                )
    finally:
        if job.is_alive():
            job.cancel()
            job.join(END_SECONDS)
    return job.value()


def driver_addresses(context: SparkContext) -> tuple[str, str]:
    """Return the driver's address for executors, and its listening address."""
    conf = context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    assert host is not None
    return host, conf.get("spark.driver.bindAddress", host) or host


@contextmanager
def dedicated_python_workers(
    context: SparkContext, role: str, preloads: Iterable[str] = ()
) -> Iterator[None]:
    """Let Spark start new Python workers for a role, and reuse none of other roles.

    An earlier evaluation in the same session computes with TensorFlow in Spark's Python workers. A
    worker forked from such a process can no longer join a cluster, and keeps its number of threads.
    PySpark separates workers, and their daemons, by their environment.

    :mod:`pipelines.spark.daemon` imports the modules ``preloads`` before it forks workers; Spark's
    own daemon ignores them.
    """
    variables = {ROLE: role, PRELOAD: " ".join(preloads)}
    context.environment.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del context.environment[name]


def await_archives(
    session: SparkSession, engine: str, profile: ResourceProfile | None = None
) -> None:
    """Let the executors unpack spark-submit's archives. Runs on the driver.

    They do so at their first task. An environment of gigabytes takes a minute, and it would count
    against the deadline for the workers' start. ``profile`` describes the workers' tasks.

    Raises:
        EngineUnavailable: It takes longer than :data:`UNPACK_SECONDS`.
        EngineError: It fails, or no Python starts there.
    """
    context = session.sparkContext
    archives = context.getConf().get("spark.archives")
    if not archives or in_one_process(context.master):
        return
    began, slots = time.monotonic(), task_slots(context, profile)
    # All slots are free, so Spark gives each of them one task.
    job = SparkJob(
        context,
        engine,
        "the first Spark job",
        "executors unpack spark.archives",
        lambda: ranks_of(context, slots, profile).foreachPartition(_touch),
    )
    job.start()
    job.join(UNPACK_SECONDS)
    if job.is_alive():
        job.cancel()
        raise EngineUnavailable(
            "spark.archives",
            f"the executors have not unpacked {archives} within {UNPACK_SECONDS:.0f} s",
            "Pack fewer engines, or install the environment on the machines",
        )
    failure = job.failure()
    if failure is not None:
        raise failure
    logger.info("the executors have unpacked %s (%.0f s)", archives, time.monotonic() - began)


def _touch(_: Iterable[int]) -> None:
    """Do nothing. Runs on an executor."""


class SparkJob(JobThread[object]):
    """A Spark job of an engine; as a context manager, it waits for the end.

    Args:
        name: What the job is, for errors.
        by_rank: Whether its tasks are the workers, in the order of their ranks.
    """

    def __init__(
        self,
        context: SparkContext,
        engine: str,
        name: str,
        description: str,
        act: Callable[[], object],
        *,
        by_rank: bool = False,
    ) -> None:
        super().__init__(context, engine, description, act)
        self._context = context
        self._by_rank = by_rank
        self._engine = engine
        self._what = name
        self._failed: float | None = None

    def failure(self) -> EngineError | None:
        """Return the job's error, if any; all but engine errors in one line."""
        if isinstance(self.error, EngineError):
            return self.error
        if isinstance(self.error, Exception):
            cause = f"{self._what} failed ({spark_cause(self.error)})"
            failed = failed_partition(str(self.error))
            host = host_of_task(self._context, self.group, failed)
            rank = failed if self._by_rank else None
            return EngineError(self._engine, cause, rank=rank, host=host)
        return None

    def host_of(self, rank: int | None) -> str | None:
        """Return the host name of a worker, if known."""
        return host_of_task(self._context, self.group, rank) if self._by_rank else None

    def settled_failure(self) -> EngineError | None:
        """Return the job's error, after workers have had time to report theirs.

        After the loss of an executor, the job can end before the closed connection of the worker is
        noticed. That says more: the lost worker, and that a new attempt may go on without it.
        """
        failure = self.failure()
        if failure is None or failure is self.error:
            return failure
        self._failed = self._failed or time.monotonic()
        return failure if time.monotonic() - self._failed > SETTLE_SECONDS else None

    def __enter__(self) -> SparkJob:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the end of the job; cancel it after an error."""
        if kind is not None:
            self.cancel()
        self.join(END_SECONDS)
        if self.is_alive():
            logger.warning("engine %s cancels %s, which does not end", self._engine, self._what)
            self.cancel()
        elif kind is None and (failure := self.failure()) is not None:
            # Not raised: all workers have finished their part, so the run itself is whole.
            logger.warning("%s", failure)


def called_off_when_stalled(work: str) -> JobDecorator:
    """Give a job the deadlines of :func:`stall_failures`; its first argument is the settings."""
    return around_job(lambda _, config: stall_failures(work, config.spark))


@contextmanager
def stall_failures(work: str, deadlines: SparkSettings) -> Iterator[None]:
    """Cancel Spark's work in the block when all of it stalls, or no executor is left.

    Progress is the begin or end of tasks, or rows read, written, shuffled, or received from Python.
    Executors report it with their heartbeats. Spark Connect sessions report none, and are
    not watched. No training runs inside, since its workers report nothing to Spark either.

    Of ``deadlines``, ``stall_seconds`` bounds a time without progress. ``wait_seconds`` bounds the
    time after all executors have gone. The first ones may take longer: a cluster may have a queue.

    Raises:
        PipelineError: A deadline has passed.
    """
    watch = _Watch(deadlines)
    watch.start()
    try:
        yield
    except Exception as error:
        if watch.reason is None:
            raise
        raise PipelineError(f"{work} was cancelled: {watch.reason}") from error
    finally:
        watch.end()


class _Watch(threading.Thread):
    """Watches Spark's work, and cancels it when all of it stalls."""

    def __init__(self, deadlines: SparkSettings) -> None:
        super().__init__(name="stall-watch", daemon=True)
        self.reason: str | None = None
        self._deadlines = deadlines
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        """Watch until the end, or a deadline; without Spark there is nothing to watch."""
        if not is_installed("pyspark"):
            return
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        seen: object = None
        had_executors = False
        # Counted, not read off a clock: this process may have been suspended.
        still = without_executors = 0.0
        while not self._ended.wait(STALL_POLL_SECONDS):
            # The session may be stopped at this moment.
            with suppress(Py4JError, OSError, AttributeError):
                context = active_context()
                if context is None:
                    continue
                now, has_executors = _movement(context), executors_of(context) > 0
                had_executors = had_executors or has_executors
                still = still + STALL_POLL_SECONDS if now is not None and now == seen else 0.0
                has_lost_all = now is not None and had_executors and not has_executors
                without_executors = without_executors + STALL_POLL_SECONDS if has_lost_all else 0.0
                seen = now
                self.reason = self._reason(context, still, without_executors)
                if self.reason is not None:
                    context.cancelAllJobs()
                    return

    def _reason(self, context: SparkContext, still: float, without_executors: float) -> str | None:
        """Return the message of a deadline that has passed, if any."""
        wait, stall = self._deadlines.wait_seconds, self._deadlines.stall_seconds
        if without_executors >= max(wait, STALL_POLL_SECONDS):
            return (
                f"{_progress(context)}, and no executor has been left for"
                f" {without_executors:.0f} s. The cluster has taken them all, or the driver's host"
                f" has lost its network. Raise {WAIT_KEY} if new ones take longer."
            )
        if still >= stall:
            return (
                f"{_progress(context)}, and nothing has moved there for {stall:.0f} s. A folder"
                " that an executor reads or writes may not answer. Look at its mounts and at the"
                f" executors' logs, or raise {KEY} for tasks as slow as that."
            )
        return None


def _movement(context: SparkContext) -> object:
    """Return a value that changes with any progress; None without a running stage."""
    stages = active_stages(context)
    if not stages:
        return None
    store = context._jsc.sc().statusStore()
    return (stages, [_rows_of(store, stage) for stage in stages], _metrics_of_queries())


def _rows_of(store: Any, stage: SparkStageInfo) -> tuple[int, ...]:
    """Return the input and output of a stage's tasks, as last reported by their executors."""
    data = store.lastStageAttempt(stage.stageId)
    return (
        data.inputRecords(),
        data.inputBytes(),
        data.outputRecords(),
        data.shuffleReadRecords(),
        data.shuffleWriteRecords(),
        data.memoryBytesSpilled(),
        data.diskBytesSpilled(),
    )


def _metrics_of_queries() -> list[str]:
    """Return the metrics of running queries, rows from Python included."""
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession  # The active one is that of another thread.
    if session is None:
        return []
    store = session._jsparkSession.sharedState().statusStore()
    return [
        store.executionMetrics(query.executionId()).toString()
        for query in java_items(store.executionsList())
        if query.completionTime().isEmpty()
    ]


def _progress(context: SparkContext) -> str:
    """Describe the running stages and their hosts, for people."""
    return ", ".join(
        f"{stage.numCompletedTasks} of {stage.numTasks} tasks of Spark's stage {stage.stageId} are"
        f" done{_hosts(context, stage)}"
        for stage in active_stages(context)
    )


def _hosts(context: SparkContext, stage: SparkStageInfo) -> str:
    """Describe the hosts of a stage's running tasks, for people."""
    store = context._jsc.sc().statusStore()
    tasks = java_items(store.taskList(stage.stageId, stage.currentAttemptId, _MOST_TASKS))
    hosts = sorted({name_of(str(task.host())) for task in tasks if task.status() == "RUNNING"})
    return f" and others run on {', '.join(hosts)}" if hosts else ""
