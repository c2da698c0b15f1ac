"""What engines need of Spark: the driver's addresses, room for the workers, and their jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import EngineError, EngineUnavailable
from pipelines.settings import TrainingSettings
from pipelines.spark.daemon import PRELOAD
from pipelines.spark.errors import spark_cause
from pipelines.spark.job_thread import END_SECONDS, JobThread
from pipelines.spark.session import in_one_process

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

UNPACK_SECONDS = 600.0
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


def await_slots(session: SparkSession, engine: str, training: TrainingSettings) -> None:
    """Waits until all workers can run at once, since a cluster may still be starting executors.

    Raises:
        EngineUnavailable: They cannot within ``training.start_seconds``, or Spark has given up.
    """
    slots = await_room(
        session, training.workers, lambda: task_slots(session.sparkContext), training.start_seconds
    )
    if slots < training.workers:
        raise EngineUnavailable(
            "training.workers",
            f"engine {engine} needs {training.workers} tasks at once and there is room for {slots}",
            "ask for fewer, or give the cluster more executors (spark.executor.instances); "
            + if_late(training),
        )


def await_room(session: SparkSession, wanted: int, count: Callable[[], int], seconds: float) -> int:
    """Waits until there is room on the cluster.

    Args:
        session: Of the cluster.
        wanted: How much room.
        count: How much there is now.
        seconds: The longest to wait.

    Returns:
        How much there is in the end.

    Raises:
        EngineUnavailable: Spark has ended the session, as it does where no master accepts it.
    """
    context, deadline = session.sparkContext, time.monotonic() + seconds
    while not context._jsc.sc().isStopped():
        if (there := count()) >= wanted or time.monotonic() > deadline:
            return there
        time.sleep(0.2)
    raise EngineUnavailable(
        "spark.master",
        f"Spark has ended the session on {context.master}, which did not take it",
        "see the log",
    )


def if_late(training: TrainingSettings) -> str:
    """Which deadline to raise if what was waited for only came too late."""
    return (
        f"if they are still starting, raise training.start_seconds ({training.start_seconds} s now)"
    )


def task_slots(context: SparkContext) -> int:
    """Tasks that can run at once on the executors that are there now."""
    spark = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    return int(spark.maxNumConcurrentTasks(profile))


def await_archives(session: SparkSession, engine: str) -> None:
    """Has the executors unpack what spark-submit sends along. Runs on the driver.

    They do so at their first task. For an environment of gigabytes that takes a minute, which
    would count against the deadline for the start of the workers.

    Raises:
        EngineUnavailable: It takes longer than :data:`UNPACK_SECONDS`.
        EngineError: It fails, or no Python starts there.
    """
    context = session.sparkContext
    archives = context.getConf().get("spark.archives")
    if not archives or in_one_process(context.master):
        return
    began, slots = time.monotonic(), task_slots(context)
    # All slots are free, so Spark gives each of them one task.
    job = SparkJob(
        context,
        engine,
        "the first Spark job",
        "executors unpack spark.archives",
        lambda: context.parallelize(range(slots), slots).foreachPartition(_touch),
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
    """

    def __init__(
        self,
        context: SparkContext,
        engine: str,
        name: str,
        description: str,
        act: Callable[[], object],
    ) -> None:
        super().__init__(context, engine, description, act)
        self._engine = engine
        self._what = name

    def failure(self) -> EngineError | None:
        """The error that the job has ended with, if any; others than engines' in one line."""
        if isinstance(self.error, EngineError):
            return self.error
        if isinstance(self.error, Exception):
            return EngineError(self._engine, f"{self._what} failed ({spark_cause(self.error)})")
        return None

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
