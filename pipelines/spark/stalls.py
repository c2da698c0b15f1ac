"""Calls the Spark jobs of a stage off when they stand still.

Spark gives up an executor that is silent. One whose tasks hang, at a mount that does not answer, is
not: it goes on sending heartbeats, and its job would wait for ever.
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
from pipelines.spark.task_places import name_of

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.status import SparkStageInfo

_P = ParamSpec("_P")
_T = TypeVar("_T")

POLL_SECONDS = 2.0
KEY = "spark.stall_seconds"
_MOST_TASKS = 10_000
"""Of a stage that are looked through for those that run."""


def called_off_when_stalled(
    work: str,
) -> Callable[[Callable[Concatenate[Config, _P], _T]], Callable[Concatenate[Config, _P], _T]]:
    """Gives a job whose first argument is the settings a deadline, ``spark.stall_seconds``.

    Args:
        work: What the job does, the beginning of the line of an error; see :func:`stall_failures`.
    """

    def decorate(
        job: Callable[Concatenate[Config, _P], _T],
    ) -> Callable[Concatenate[Config, _P], _T]:
        @functools.wraps(job)
        def watched(config: Config, /, *args: _P.args, **options: _P.kwargs) -> _T:
            with stall_failures(work, config.spark.stall_seconds):
                return job(config, *args, **options)

        return watched

    return decorate


@contextmanager
def stall_failures(work: str, seconds: float) -> Iterator[None]:
    """Cancels what Spark does in the block when all of it stands still.

    It moves as long as tasks begin and end, and rows are read, written, shuffled, or come from
    Python: the executors tell that with their heartbeats. Sessions of Spark Connect tell nothing of
    the kind, and are not watched. No training runs inside, whose workers tell Spark nothing either.

    Args:
        work: What is done, the beginning of the line of an error.
        seconds: How long nothing may move.

    Raises:
        PipelineError: Nothing has moved for so long.
    """
    watch = _Watch(seconds)
    watch.start()
    try:
        yield
    except Exception as error:
        if watch.stalled is None:
            raise
        raise PipelineError(
            f"{work} was called off: {watch.stalled}, and nothing has moved there for"
            f" {seconds:.0f} s. A folder that an executor reads or writes may not answer: look at"
            f" its mounts and at the executors' logs; for tasks that are as slow raise {KEY}"
        ) from error
    finally:
        watch.end()


class _Watch(threading.Thread):
    """Looks at what Spark does, and cancels it when all of it stands still.

    Attributes:
        stalled: What stood still, once that is so.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(name="stall-watch", daemon=True)
        self.stalled: str | None = None
        self._seconds = seconds
        self._ended = threading.Event()

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()

    def run(self) -> None:
        """Looks until the end, or the deadline."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        seen: object = None
        # Counted, not read off a clock: this process may have been suspended.
        still = 0.0
        while not self._ended.wait(POLL_SECONDS):
            # The session may be stopped at this moment.
            with suppress(Py4JError, OSError, AttributeError):
                context = _context()
                now = None if context is None else _movement(context)
                still = still + POLL_SECONDS if now is not None and now == seen else 0.0
                seen = now
                if context is not None and still >= self._seconds:
                    self.stalled = _told(context)
                    context.cancelAllJobs()
                    return


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
