"""What engines need of Spark: the driver's addresses, their Python workers, and their jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import EngineError, EngineUnavailable
from pipelines.spark.daemon import PRELOAD
from pipelines.spark.errors import spark_cause
from pipelines.spark.job_thread import END_SECONDS, ContextGroups, JobThread
from pipelines.spark.room import ranks_of, task_slots
from pipelines.spark.session import in_one_process
from pipelines.spark.task_places import failed_partition, host_of_task

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession

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
