"""Sessions without a SparkContext: what Spark Connect lets a job do, and what it does not."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def is_connected() -> bool:
    """Whether the session of this process is, or will be, one of Spark Connect.

    Databricks has such sessions in standard access mode and on serverless compute; elsewhere
    `SPARK_REMOTE` names their server.
    """
    from pyspark.sql.utils import is_remote

    return bool(is_remote()) or bool(os.environ.get("SPARK_REMOTE"))


def server_is_here() -> bool:
    """Whether the client starts a server of Spark Connect on this machine, as PySpark 4 can."""
    return os.environ.get("SPARK_REMOTE", "").startswith("local")


def check_context() -> None:
    """Refuses a session in which a job that needs a SparkContext cannot run.

    Raises:
        InputError: It is one of Spark Connect.
    """
    if is_connected():
        raise InputError(
            "spark.master",
            "this session is of Spark Connect (on Databricks: standard access mode, or serverless) "
            "and has no SparkContext, which this job needs",
            "run it on a cluster of dedicated access mode; prepare, evaluate, embed, mine, search "
            "and training by engine local work here too",
        )


def connected_session() -> SparkSession:
    """The session of Spark Connect, whose tasks are counted from now on.

    The client tries again for some ten minutes: a server may have yet to start.

    Raises:
        InputError: Its server cannot be reached.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.builder.getOrCreate()
        # Nothing has been asked of the server before.
        logger.debug("Spark Connect %s", session.version)
    except (ImportError, PySparkException, Py4JError) as error:
        summary = str(error).strip().splitlines()[0]
        raise InputError(
            "spark.master",
            f"no session of Spark Connect ({summary})",
            'correct SPARK_REMOTE, start the server, or pip install "pyspark[connect]"',
        ) from error
    if tells_tasks(session):
        # The client keeps a handler once.
        session.registerProgressHandler(TASKS)
    found: SparkSession = session
    return found


def tells_tasks(session: SparkSession) -> bool:
    """Whether a session of Spark Connect says how far its jobs are; Spark 3.5 has none that do."""
    return hasattr(session, "registerProgressHandler")


class OperationTasks:
    """Counts the tasks of the operations that a client of Spark Connect has running.

    The client calls it, on the threads that wait for the operations.
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
        """Notes how far an operation is; the arguments have the names that PySpark gives them."""
        if done:
            self._counts.pop(operation_id, None)
            return
        known = list(stages or ())
        completed = sum(stage.num_completed_tasks for stage in known)
        self._counts[operation_id] = completed, sum(stage.num_tasks for stage in known)

    def counts(self) -> tuple[int, int]:
        """Tasks that are done, and all tasks, of what runs now."""
        found = list(self._counts.values())
        return sum(done for done, _ in found), sum(tasks for _, tasks in found)


TASKS = OperationTasks()
"""Of this process."""
