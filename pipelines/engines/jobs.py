"""What engines ask of Spark: where the driver is, room for the workers, what an error means."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.errors import EngineError, EngineUnavailable
from pipelines.session import in_one_process
from pipelines.settings import TrainingSettings

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

JOB_END_SECONDS = 20.0
UNPACK_SECONDS = 600.0


def driver_addresses(context: SparkContext) -> tuple[str, str]:
    """Where executors reach the driver, and where it listens for them."""
    conf = context.getConf()
    host = conf.get("spark.driver.host", "127.0.0.1")
    assert host is not None
    return host, conf.get("spark.driver.bindAddress", host) or host


@contextmanager
def workers_of_their_own(context: SparkContext, role: str) -> Iterator[None]:
    """Has Spark start Python workers for a role that jobs of other roles have not used.

    An evaluation before, in the same session, computes with TensorFlow in Spark's Python
    workers: one that is forked from such a process can no longer join a cluster, and the number
    of threads stays what it was. PySpark keeps workers apart by their environment.

    Args:
        context: Where the jobs are started, inside this context.
        role: Told apart from others.
    """
    context.environment["SENTENCE_PIPELINES_ROLE"] = role
    try:
        yield
    finally:
        del context.environment["SENTENCE_PIPELINES_ROLE"]


def await_slots(session: SparkSession, engine: str, training: TrainingSettings) -> None:
    """Waits until all workers can run at once, since a cluster may still be starting executors.

    Raises:
        EngineUnavailable: They cannot within ``training.start_seconds``.
    """
    deadline = time.monotonic() + training.start_seconds
    while (slots := task_slots(session.sparkContext)) < training.workers:
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                "training.workers",
                f"engine {engine} needs {training.workers} tasks at once and there is room for"
                f" {slots}",
                "ask for fewer, or give the cluster more executors (spark.executor.instances)",
            )
        time.sleep(0.2)


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
        job.call_off()
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


class SparkJob(threading.Thread):
    """A Spark job on a thread beside the one that watches; a context manager.

    Args:
        context: Where it runs.
        engine: Name of the engine.
        name: What the job is, for errors.
        description: The same for Spark's pages.
        act: Starts the job, and returns when it has ended; an error that is none of an engine yet
            is told in one line.
    """

    def __init__(
        self,
        context: SparkContext,
        engine: str,
        name: str,
        description: str,
        act: Callable[[], object],
    ) -> None:
        super().__init__(name=engine, daemon=True)
        self._context = context
        self._engine = engine
        self._what = name
        self._description = description
        self._act = act
        self._group = f"{engine}-{uuid.uuid4().hex[:8]}"
        self._failure: EngineError | None = None

    def run(self) -> None:
        """Runs the job; its error is left for the thread that watches."""
        try:
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            self._act()
        except EngineError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - carried to the waiting thread
            cause = f"{self._what} failed ({spark_cause(error)})"
            self._failure = EngineError(self._engine, cause)

    def call_off(self) -> None:
        """Has Spark end the job."""
        self._context.cancelJobGroup(self._group)

    def failure(self) -> EngineError | None:
        """The error that the job has ended with, if it has."""
        return self._failure

    def __enter__(self) -> SparkJob:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the end of the job, which is called off after an error."""
        if kind is not None:
            self.call_off()
        self.join(JOB_END_SECONDS)
        if self.is_alive():
            logger.warning("engine %s: %s goes on; it is called off", self._engine, self._what)
            self.call_off()
        elif kind is None and self._failure is not None:
            # All workers have finished their part, so that the run itself is whole.
            logger.warning("%s", self._failure)


def spark_cause(error: Exception | str) -> str:
    """What a Spark error says in one line.

    That is the last line of the executor's Python traceback, or the first that names a Java
    exception, since the text begins with the call that failed.
    """
    lines = str(error).splitlines()
    python = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception): ", line)]
    java = [line for line in lines if re.search(r"\w(Error|Exception): ", line)]
    if python:
        return python[-1]
    return (java or lines or [repr(error)])[0].removeprefix(": ")
