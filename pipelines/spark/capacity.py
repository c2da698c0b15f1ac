"""The capacity of a session for its tasks, whether it has a SparkContext or is Spark Connect's."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from pipelines.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


logger = logging.getLogger(__name__)


_ROWS = 2**16
Value = TypeVar("Value")
MOST_BYTES = 96 * 2**20
"""The limit of a function's data in Spark Connect, whose messages have at most 128 MiB."""


def is_connected() -> bool:
    """Return whether this process's session is, or will be, one of Spark Connect.

    Databricks has such sessions in standard access mode and on serverless compute. Elsewhere
    `SPARK_REMOTE` names their server.
    """
    from pyspark.sql.utils import is_remote

    return bool(is_remote()) or bool(os.environ.get("SPARK_REMOTE"))


def server_is_here() -> bool:
    """Return whether the client starts a local server, as PySpark 4 can."""
    return os.environ.get("SPARK_REMOTE", "").startswith("local")


def check_context() -> None:
    """Refuse a session without a SparkContext.

    Raises:
        InputError: It is one of Spark Connect.
    """
    if is_connected():
        raise InputError(
            "spark.master",
            "this is a Spark Connect session (on Databricks: standard access mode, or serverless) "
            "and has no SparkContext, which this job needs",
            "Run it on a cluster in dedicated access mode; prepare, evaluate, embed, mine, search "
            "and training by engine local work here too",
        )


def connected_session() -> SparkSession:
    """Return the session of Spark Connect, and count its tasks from now on.

    The client retries for about ten minutes: a server may have yet to start.

    Raises:
        InputError: Its server cannot be reached.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.builder.getOrCreate()
        # The first request: making the session has not reached the server.
        logger.debug("Spark Connect %s", session.version)
    except (ImportError, PySparkException, Py4JError) as error:
        summary = str(error).strip().splitlines()[0]
        raise InputError(
            "spark.master",
            f"Spark Connect gives no session ({summary})",
            'Correct SPARK_REMOTE, start the server, or run `pip install "pyspark[connect]"`',
        ) from error
    if tells_tasks(session):
        # The client keeps each handler once, however often it is registered.
        session.registerProgressHandler(TASKS)
    found: SparkSession = session
    return found


def tells_tasks(session: SparkSession) -> bool:
    """Return whether a Spark Connect session reports its jobs' progress; none of 3.5 does."""
    return hasattr(session, "registerProgressHandler")


class OperationTasks:
    """Counts the tasks of a Spark Connect client's running operations.

    The client calls it from the waiting threads of the operations.
    """

    def __init__(self) -> None:
        self._counts: dict[str | None, tuple[int, int]] = {}

    def __call__(
        self,
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Record an operation's progress; PySpark passes the arguments by these names."""
        if done:
            self._counts.pop(operation_id, None)
            return
        known = list(stages or ())
        completed = sum(stage.num_completed_tasks for stage in known)
        self._counts[operation_id] = completed, sum(stage.num_tasks for stage in known)

    def counts(self) -> tuple[int, int]:
        """Return the completed tasks and all tasks of the running operations."""
        found = list(self._counts.values())
        return sum(done for done, _ in found), sum(tasks for _, tasks in found)


TASKS = OperationTasks()
"""The counts for this process's client."""


def default_parallelism(session: SparkSession) -> int:
    """Return Spark's default number of tasks: the cores, unless set."""
    if not is_connected():
        return int(session.sparkContext.defaultParallelism)
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know

    # A client cannot ask for the number, but a range has as many partitions.
    places = session.range(_ROWS).select(F.spark_partition_id().alias("place"))
    return int(places.agg(F.max("place").alias("last")).collect()[0]["last"]) + 1


def has_partitions(frame: DataFrame, least: int) -> bool:
    """Return whether a frame has ``least`` partitions; always False in Spark Connect."""
    # Spark Connect has no RDDs, and so no number of partitions.
    return not is_connected() and frame.rdd.getNumPartitions() >= least


def task_threads(session: SparkSession) -> int:
    """Return the CPU threads of a task."""
    return int(conf_value(session, "spark.task.cpus", "1") or 1)


@overload
def conf_value(session: SparkSession, key: str, default: str) -> str: ...
@overload
def conf_value(session: SparkSession, key: str, default: None = None) -> str | None: ...
def conf_value(session: SparkSession, key: str, default: str | None = None) -> str | None:
    """Return a key of a session's conf; the default if unset or refused.

    Serverless sessions of Databricks know few keys of Spark's conf, and refuse the others.
    """
    from pyspark.errors import PySparkException

    try:
        return session.conf.get(key, default)
    except PySparkException as error:
        if not is_connected():
            raise
        logger.debug("the session refuses %s (%s)", key, error)
        return default


@contextmanager
def settings_set(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set keys of a session's conf while the block runs."""
    conf = session.conf
    before = {key: conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            conf.set(key, value)
        yield
    finally:
        for key, known in before.items():
            if known is None:
                conf.unset(key)
            else:
                conf.set(key, known)


@dataclass(frozen=True)
class Shared(Generic[Value]):
    """A value, pickled with each function that uses it.

    A Spark broadcast has the same attribute, and reaches each executor once.
    """

    value: Value


@contextmanager
def shared_value(session: SparkSession, value: Value) -> Iterator[Shared[Value]]:
    """Share a value with the tasks of jobs inside the block.

    Raises:
        InputError: It is too large for a session of Spark Connect, which has no broadcasts.
    """
    if not is_connected():
        broadcast: Any = session.sparkContext.broadcast(value)
        try:
            yield cast("Shared[Value]", broadcast)
        finally:
            broadcast.destroy()
        return
    size = len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    if size > MOST_BYTES:
        raise InputError(
            "spark.master",
            f"tasks need {size / 2**20:.0f} MiB, and a Spark Connect session cannot send as much",
            f"Ask fewer queries at a time (up to {MOST_BYTES >> 20} MiB of vectors), or run it on "
            "a cluster in dedicated access mode",
        )
    yield Shared(value)
