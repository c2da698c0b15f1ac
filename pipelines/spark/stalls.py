"""Calls the Spark jobs of a stage off when they stand still.

Spark gives up an executor that is silent. One whose tasks hang, at a mount that does not answer, is
not: it goes on sending heartbeats, and its job would wait for ever. So would one that has no
executor left, and gets none.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pipelines.errors import PipelineError
from pipelines.settings import Config
from pipelines.settings.spark import SparkSettings
from pipelines.spark.session import executors_of
from pipelines.spark.task_places import name_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.status import SparkStageInfo

_P = ParamSpec("_P")
_T = TypeVar("_T")

POLL_SECONDS = 2.0
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
        while not self._ended.wait(POLL_SECONDS):
            # The session may be stopped at this moment.
            with suppress(Py4JError, OSError, AttributeError):
                context = _context()
                if context is None:
                    continue
                now, there = _movement(context), executors_of(context) > 0
                had_executors = had_executors or there
                still = still + POLL_SECONDS if now is not None and now == seen else 0.0
                is_alone = now is not None and had_executors and not there
                alone = alone + POLL_SECONDS if is_alone else 0.0
                seen = now
                self.reason = self._reason(context, still, alone)
                if self.reason is not None:
                    context.cancelAllJobs()
                    return

    def _reason(self, context: SparkContext, still: float, alone: float) -> str | None:
        """What is to be told if one of the deadlines has passed."""
        wait, stall = self._deadlines.wait_seconds, self._deadlines.stall_seconds
        if alone >= max(wait, POLL_SECONDS):
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
