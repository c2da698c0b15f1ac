"""What engines need of Spark: the driver's addresses, their Python workers, and their jobs.

Calls the Spark jobs of a stage off when they stand still.

Spark gives up an executor that is silent. One whose tasks hang, at a mount that does not answer, is
not: it goes on sending heartbeats, and its job would wait for ever. So would one that has no
executor left, and gets none.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from pipelines.errors import EngineError, EngineUnavailable, PipelineError
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.settings.spark import SparkSettings
from pipelines.spark.capacity import is_connected, tells_tasks
from pipelines.spark.daemon import PRELOAD
from pipelines.spark.errors import failed_partition, host_of_task, name_of, spark_cause
from pipelines.spark.session import (
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


ROOM_POLL_SECONDS = 0.2
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
            time.sleep(ROOM_POLL_SECONDS)
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


logger = logging.getLogger(__name__)

UNPACK_SECONDS = 600.0
# The connections of an executor that is lost are closed at once.
SETTLE_SECONDS = 5.0
ROLE = "SENTENCE_PIPELINES_ROLE"


def driver_addresses(context: SparkContext) -> tuple[str, str]:
    """Where executors reach the driver, and where it listens for them."""
    conf = context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    assert host is not None
    return host, conf.get("spark.driver.bindAddress", host) or host


@contextmanager
def dedicated_python_workers(
    context: SparkContext, role: str, preloads: Iterable[str] = ()
) -> Iterator[None]:
    """Has Spark start Python workers for a role that jobs of other roles have not used.

    An evaluation before, in the same session, computes with TensorFlow in Spark's Python
    workers: one that is forked from such a process can no longer join a cluster, and the number
    of threads stays what it was. PySpark keeps workers apart by their environment, and the daemons
    that they are forked from.

    Args:
        context: Of the jobs that are started inside the block.
        role: Differs between jobs that must not share workers.
        preloads: Modules that :mod:`pipelines.spark.daemon` imports before it forks workers;
            Spark's own daemon does not look at them.
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
    """Has the executors unpack what spark-submit sends along. Runs on the driver.

    They do so at their first task. For an environment of gigabytes that takes a minute, which
    would count against the deadline for the start of the workers.

    Args:
        profile: Of the tasks of the workers; by default the session's.

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
            "pack fewer engines, or install the environment on the machines",
        )
    failure = job.failure()
    if failure is not None:
        raise failure
    logger.info("the executors have unpacked %s (%.0f s)", archives, time.monotonic() - began)


def _touch(_: Iterable[int]) -> None:
    """Does nothing. Runs on an executor."""


class SparkJob(JobThread[object]):
    """A Spark job of an engine; a context manager, which waits for its end.

    Args:
        context: Where it runs.
        engine: Name of the engine.
        name: What the job is, for errors.
        description: The same for Spark's pages.
        act: Starts the job, and returns when it has ended.
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
        super().__init__(ContextGroups(context), engine, description, act)
        self._context = context
        self._by_rank = by_rank
        self._engine = engine
        self._what = name
        self._failed: float | None = None

    def failure(self) -> EngineError | None:
        """The error that the job has ended with, if any; others than engines' in one line."""
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
        """Name of the host that a worker was started on; none if that is not known."""
        return host_of_task(self._context, self.group, rank) if self._by_rank else None

    def settled_failure(self) -> EngineError | None:
        """The error that the job has ended with, once workers have had time to tell theirs.

        A job whose executor is lost can end before the worker's connection is found closed,
        which says more: which worker it was, and that a new attempt may go on without it.
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
        """Waits for the end of the job, which is cancelled after an error."""
        if kind is not None:
            self.cancel()
        self.join(END_SECONDS)
        if self.is_alive():
            logger.warning("engine %s: %s goes on; it is called off", self._engine, self._what)
            self.cancel()
        elif kind is None and (failure := self.failure()) is not None:
            # All workers have finished their part, so that the run itself is whole.
            logger.warning("%s", failure)


_P = ParamSpec("_P")
_T = TypeVar("_T")

STALL_POLL_SECONDS = 2.0
KEY, WAIT_KEY = "spark.stall_seconds", "spark.wait_seconds"
_MOST_TASKS = 10_000
"""Of a stage that are looked through for those that run."""


def called_off_when_stalled(
    work: str,
) -> Callable[[Callable[Concatenate[Config, _P], _T]], Callable[Concatenate[Config, _P], _T]]:
    """Gives a job whose first argument is the settings the deadlines of :func:`stall_failures`.

    Args:
        work: What the job does, the beginning of the line of an error; see :func:`stall_failures`.
    """

    def decorate(
        job: Callable[Concatenate[Config, _P], _T],
    ) -> Callable[Concatenate[Config, _P], _T]:
        @functools.wraps(job)
        def watched(config: Config, /, *args: _P.args, **options: _P.kwargs) -> _T:
            with stall_failures(work, config.spark):
                return job(config, *args, **options)

        return watched

    return decorate


@contextmanager
def stall_failures(work: str, deadlines: SparkSettings) -> Iterator[None]:
    """Cancels what Spark does in the block when all of it stands still, or no executor is left.

    It moves as long as tasks begin and end, and rows are read, written, shuffled, or come from
    Python: the executors tell that with their heartbeats. Sessions of Spark Connect tell nothing of
    the kind, and are not watched. No training runs inside, whose workers tell Spark nothing either.

    Args:
        work: What is done, the beginning of the line of an error.
        deadlines: Its ``stall_seconds`` say how long nothing may move, its ``wait_seconds`` how
            long all executors that were there may be gone. For the first ones it may wait longer:
            a cluster may have a queue.

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
        raise PipelineError(f"{work} was called off: {watch.reason}") from error
    finally:
        watch.end()


class _Watch(threading.Thread):
    """Looks at what Spark does, and cancels it when all of it stands still.

    Attributes:
        reason: Why it was cancelled, once that is so.
    """

    def __init__(self, deadlines: SparkSettings) -> None:
        super().__init__(name="stall-watch", daemon=True)
        self.reason: str | None = None
        self._deadlines = deadlines
        self._ended = threading.Event()

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()

    def run(self) -> None:
        """Looks until the end, or a deadline."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        seen: object = None
        had_executors = False
        # Counted, not read off a clock: this process may have been suspended.
        still = alone = 0.0
        while not self._ended.wait(STALL_POLL_SECONDS):
            # The session may be stopped at this moment.
            with suppress(Py4JError, OSError, AttributeError):
                context = _context()
                if context is None:
                    continue
                now, there = _movement(context), executors_of(context) > 0
                had_executors = had_executors or there
                still = still + STALL_POLL_SECONDS if now is not None and now == seen else 0.0
                is_alone = now is not None and had_executors and not there
                alone = alone + STALL_POLL_SECONDS if is_alone else 0.0
                seen = now
                self.reason = self._reason(context, still, alone)
                if self.reason is not None:
                    context.cancelAllJobs()
                    return

    def _reason(self, context: SparkContext, still: float, alone: float) -> str | None:
        """What is to be told if one of the deadlines has passed."""
        wait, stall = self._deadlines.wait_seconds, self._deadlines.stall_seconds
        if alone >= max(wait, STALL_POLL_SECONDS):
            return (
                f"{_told(context)}, and no executor has been left for {alone:.0f} s. The cluster"
                " has taken them all, or the driver's host has lost its network; if new ones come"
                f" later than that raise {WAIT_KEY}"
            )
        if still >= stall:
            return (
                f"{_told(context)}, and nothing has moved there for {stall:.0f} s. A folder that an"
                " executor reads or writes may not answer: look at its mounts and at the executors'"
                f" logs; for tasks that are as slow raise {KEY}"
            )
        return None


def _context() -> SparkContext | None:
    """The SparkContext of this process, if it has one."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _movement(context: SparkContext) -> object:
    """Differs from what it was if anything has moved; None where no stage runs."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    if not stages:
        return None
    store = context._jsc.sc().statusStore()
    return (stages, [_rows_of(store, one) for one in stages if one], _metrics_of_queries())


def _rows_of(store: Any, stage: SparkStageInfo) -> tuple[int, ...]:
    """What the tasks of a stage have read and written, as their executors last told."""
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
    """The metrics of the queries that run: among them rows that came from Python."""
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession  # The active one is that of another thread.
    if session is None:
        return []
    store = session._jsparkSession.sharedState().statusStore()
    queries = store.executionsList()
    found = (queries.apply(number) for number in range(queries.size()))
    return [
        store.executionMetrics(one.executionId()).toString()
        for one in found
        if one.completionTime().isEmpty()
    ]


def _told(context: SparkContext) -> str:
    """Which stages run, and where, for people."""
    tracker = context.statusTracker()
    stages = filter(None, map(tracker.getStageInfo, tracker.getActiveStageIds()))
    return ", ".join(
        f"{one.numCompletedTasks} of {one.numTasks} tasks of Spark's stage {one.stageId} are done"
        f"{_hosts(context, one)}"
        for one in stages
    )


def _hosts(context: SparkContext, stage: SparkStageInfo) -> str:
    """Where the tasks of a stage run now, for people."""
    store = context._jsc.sc().statusStore()
    tasks = store.taskList(stage.stageId, stage.currentAttemptId, _MOST_TASKS)
    each = [tasks.apply(number) for number in range(tasks.size())]
    hosts = sorted({name_of(str(task.host())) for task in each if task.status() == "RUNNING"})
    return f" and others run on {', '.join(hosts)}" if hosts else ""
