"""The common part of engines on Spark: checks before a run, and the run itself.

Everything here runs on the driver, except the workers' tasks.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.catalog import STEPPERS
from pipelines.engines.base import NO_DYNAMIC_ALLOCATION, Engine, check_conf, monitor_for
from pipelines.errors import EngineError, EngineUnavailable, InputError, WorkerLostError
from pipelines.runs.run import TrainingOutcome, TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config
from pipelines.spark.errors import LeavingExecutors, reasons_of_losses
from pipelines.spark.jobs import (
    SparkJob,
    await_slots,
    dedicated_python_workers,
    driver_addresses,
    ranks_of,
)
from pipelines.spark.shell import encrypting_key
from pipelines.spark.stage_resources import check_resources, resource_profile, resources_in
from pipelines.training.control.authenticated_server import Identity, make_identity
from pipelines.training.control.reporter import ABORTED, report_lost

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile
    from pyspark.sql import SparkSession


PR_SET_PDEATHSIG = 1  # of prctl(2), Linux


def end_with_parent() -> None:
    """End this process with its parent, even where it is stopped and takes no other signal."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_in_child(
    task: WorkerTask,
    work: Callable[[WorkerTask], object],
    listener: socket.socket | None = None,
) -> None:
    """Run a worker in a child process, and wait for its end. Runs in a Spark task.

    Errors go to the monitor and are not raised: Spark would start a failed task again. Only the
    child keeps the `listener`: when it has died, nothing listens there.
    """
    # fork, since a Python worker of Spark has no main module that a new interpreter could
    # load; this one computes nothing.
    child = multiprocessing.get_context("fork").Process(target=_work, args=(work, task))
    child.start()
    if listener is not None:
        listener.close()
    # The deadlines are the monitor's: it ends the child, and the child ends with this worker.
    child.join()
    if child.exitcode not in (0, ABORTED):
        # Counts only if the child did not report its own error.
        with suppress(OSError):
            report_lost(task, f"the worker's process died (exit code {child.exitcode})")


def _work(work: Callable[[WorkerTask], object], task: WorkerTask) -> None:
    end_with_parent()
    work(task)


def _run_rank(task: WorkerTask, work: Callable[[WorkerTask], object], ranks: Iterable[int]) -> None:
    (rank,) = ranks
    run_in_child(replace(task, rank=rank), work)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DriverSide:
    """The driver's end of a run's workers.

    Attributes:
        conf: Of Spark, while the job runs.
        profile: Of the tasks of the job; None for the session's.
        host: Address by which the executors reach the driver.
        bind: Address at which the driver listens.
        identity: Encrypts the connections to the driver; None for plain ones.
        resources: Opened here by an engine for its workers; closed after the job.
    """

    context: SparkContext
    conf: Mapping[str, str]
    profile: ResourceProfile | None
    host: str
    bind: str
    identity: Identity | None
    resources: ExitStack

    def ranks(self, workers: int) -> RDD[int]:
        """Return the ranks of the workers, one a task."""
        return ranks_of(self.context, workers, self.profile)

    def run_ranks(self, task: WorkerTask, work: Callable[[WorkerTask], object]) -> None:
        """Run each worker in a child of its Spark task; return when all have ended.

        `task` belongs to rank 0; `work` travels to the executors and runs in the child.
        """
        self.ranks(task.workers).foreachPartition(partial(_run_rank, task, work))


class SparkEngine(Engine):
    """An engine whose workers run on executors, by default as the tasks of one Spark job.

    Attributes:
        job_name: The name of the workers' job in errors.
        with_profiles: Whether its tasks can have resources that are not the session's.
    """

    needs_spark = True
    with_profiles: ClassVar[bool] = True
    job_name: ClassVar[str] = "the Spark job"

    @override
    def executors(self, config: Config) -> int:
        return config.training.workers

    @override
    def check(self, session: SparkSession | None, config: Config) -> None:
        session = self._required(session)
        self.check_session(session, config)
        self.check_cluster(session, config)
        key = encrypting_key(session.sparkContext)
        if key is not None and self.clear_text is not None:
            logger.warning(
                "%s is set, and engine %s still sends in clear text: %s",
                key,
                self.name,
                self.clear_text,
            )

    @override
    def check_session(self, session: SparkSession, config: Config) -> None:
        resources = resources_in(session, config, "train")
        if (asked := (*resources.tasks, *resources.executors)) and not self.with_profiles:
            raise InputError(
                f"stages.train.{asked[0]}",
                f"engine {self.name} runs library jobs, which have the session's resources",
                "run `train` as a job of its own, or set it for all stages",
            )
        if resources.executors and NO_DYNAMIC_ALLOCATION in self.rules:
            raise InputError(
                f"stages.train.{resources.executors[0]}",
                f"engine {self.name} starts all workers at once, on executors that are there",
                "run `train` as a job of its own, or set it for all stages",
            )
        check_resources("train", resources)
        check_conf(resources.conf, self.name, self.rules)

    def check_cluster(self, session: SparkSession, config: Config) -> None:
        """Wait until the cluster has room for all workers, and check its conf.

        Raises:
            EngineUnavailable: There is no room within ``spark.wait_seconds``, or the cluster lacks
                something else that the engine needs.
        """
        wanted = config.training.workers
        there = self.room(session, config, wanted, config.spark.wait_seconds)
        if there < wanted:
            raise EngineUnavailable(
                "training.workers",
                f"engine {self.name} needs {wanted} tasks at once and there is room for {there}",
                "ask for fewer, or give the cluster more executors (spark.executor.instances); "
                + if_late(config),
            )

    @override
    def room(
        self, session: SparkSession | None, config: Config, wanted: int, seconds: float
    ) -> int:
        session = self._required(session)
        return await_slots(session, wanted, seconds, resources_in(session, config, "train"))

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        framework = config.training.framework
        stepper = (STEPPERS.module(framework),) if framework in STEPPERS else ()
        return ("pipelines.training.loop", *stepper)

    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        """Open on the driver what the workers need, and return the call that runs their job.

        The call blocks until the job ends. It runs on a separate thread, while the run's thread
        listens to the monitor; its errors end the run. `task` belongs to rank 0; the others differ
        only by rank.
        """
        raise NotImplementedError

    def python_worker_role(self, config: Config) -> str:
        """Return the role by which runs share Spark's Python workers; see ``spark.jobs``."""
        return self.name

    @override
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        session = self._required(session)
        context, workers = session.sparkContext, run.config.training.workers
        host, bind = driver_addresses(context)
        identity = driver_identity(context)
        monitor = monitor_for(self.name, run, step_metrics, host, bind, identity=identity)
        task = WorkerTask(
            run=run,
            rank=0,
            workers=workers,
            monitor=monitor.address,
            token=monitor.token,
            fingerprint=monitor.fingerprint,
        )
        # Entered first: the job ends after the monitor has told the workers to leave.
        reasons = reasons_of_losses(context, monitor.address_of)
        with reasons, ExitStack() as resources, monitor:
            role, preloads = self.python_worker_role(run.config), self.preloads(run.config)
            resources.enter_context(dedicated_python_workers(context, role, preloads))
            stage = resources_in(session, run.config, "train")
            profile = resource_profile(stage)
            driver = DriverSide(context, stage.conf, profile, host, bind, identity, resources)
            act = self.prepare_job(driver, task)
            description = f"workers of engine {self.name}"
            job = SparkJob(context, self.name, self.job_name, description, act, by_rank=True)
            resources.enter_context(job)
            leaving = LeavingExecutors(context, monitor.ask_for_checkpoint)

            def should_stop() -> EngineError | None:
                leaving.look()
                return job.settled_failure()

            try:
                return monitor.wait(should_stop)
            except WorkerLostError as lost:
                # One that never connected could not say where it was.
                raise lost.at(job.host_of(lost.rank)) from None

    def _required(self, session: SparkSession | None) -> SparkSession:
        if session is None:
            raise ValueError(f"engine {self.name} trains in a Spark session, and there is none")
        return session


def if_late(config: Config) -> str:
    """Return the deadline to raise if awaited executors only came too late."""
    return (
        f"if they are still starting, raise spark.wait_seconds ({config.spark.wait_seconds} s now)"
    )


def driver_identity(context: SparkContext) -> Identity | None:
    """Return the identity of the driver's servers of a run; None where the cluster is plain."""
    return None if encrypting_key(context) is None else make_identity()
