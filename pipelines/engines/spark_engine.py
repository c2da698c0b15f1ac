"""What engines on Spark share: the checks before a run, and a run from its start to its end.

Everything here runs on the driver.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Engine, OnMetrics, monitor_for
from pipelines.engines.conf import check_conf
from pipelines.runs.run import TrainingOutcome, TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config
from pipelines.spark.jobs import SparkJob, await_slots, dedicated_python_workers, driver_addresses
from pipelines.training.steppers import STEPPERS

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


class SparkEngine(Engine):
    """An engine whose workers run on executors."""

    needs_spark = True

    @override
    def executors(self, config: Config) -> int:
        return config.training.workers

    @override
    def check(self, session: SparkSession | None, config: Config) -> None:
        session = self._required(session)
        self.check_libraries(config)
        self.check_settings(config)
        conf = dict(session.sparkContext.getConf().getAll())
        check_conf(conf, self.name, self.conf_rules(config))
        self.check_cluster(session, config)

    def check_settings(self, config: Config) -> None:
        """Refuses settings that do not fit together on this engine.

        Raises:
            InputError: Naming the key, and what would fit.
        """

    def check_cluster(self, session: SparkSession, config: Config) -> None:
        """Waits until the cluster has room for all workers; its conf follows the rules.

        Raises:
            EngineUnavailable: There is none within ``training.start_seconds``, or the cluster
                lacks something else that the engine needs.
        """
        await_slots(session, self.name, config.training)

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        framework = config.training.framework
        stepper = (STEPPERS.module(framework),) if framework in STEPPERS else ()
        return ("pipelines.training.worker", *stepper)

    @override
    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        return self.train_on(self._required(session), run, on_metrics)

    @abstractmethod
    def train_on(
        self, session: SparkSession, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :meth:`Engine.train`; on a cluster that has passed :meth:`check`."""

    def _required(self, session: SparkSession | None) -> SparkSession:
        if session is None:
            raise ValueError(f"engine {self.name} trains in a Spark session, and there is none")
        return session


@dataclass(frozen=True)
class DriverSide:
    """The driver's end of a run's workers.

    Attributes:
        context: Where the job runs.
        host: Address by which the executors reach the driver.
        bind: Address at which the driver listens.
        resources: Closed after the job has ended: what an engine opens here for its workers.
    """

    context: SparkContext
    host: str
    bind: str
    resources: ExitStack


class SparkJobEngine(SparkEngine):
    """An engine whose workers are the tasks of one Spark job, and report to the monitor.

    Attributes:
        job_name: What the job is called in errors.
    """

    job_name: ClassVar[str] = "the Spark job"

    @abstractmethod
    def prepare_job(self, driver: DriverSide, task: WorkerTask) -> Callable[[], object]:
        """Opens on the driver what the workers need, and gives the call that runs their job.

        The call blocks until the job ends. It runs on a thread of its own, while the thread of
        the run listens to the monitor; what it raises ends the run.

        Args:
            driver: The driver's end.
            task: Of rank 0; the others differ by their rank alone.
        """

    def python_worker_role(self, config: Config) -> str:
        """Runs of different roles share no Python worker of Spark's; see ``spark.jobs``."""
        return self.name

    @override
    def train_on(
        self, session: SparkSession, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        return self.run_workers(session, run, on_metrics)

    def run_workers(
        self,
        session: SparkSession,
        run: TrainingRun,
        on_metrics: OnMetrics,
        step_metrics: StepMetrics | None = None,
    ) -> TrainingOutcome:
        """Starts all workers once, and returns when all are done and gone.

        Args:
            step_metrics: Those of a run that other workers began; by default new ones.

        Raises:
            EngineError: The run failed; no process and no job of it is left.
        """
        context, workers = session.sparkContext, run.config.training.workers
        host, bind = driver_addresses(context)
        monitor = monitor_for(self.name, run, on_metrics, host, bind, step_metrics=step_metrics)
        task = WorkerTask(
            run=run, rank=0, workers=workers, monitor=monitor.address, token=monitor.token
        )
        # Entered first: the job ends after the monitor has told the workers to leave.
        with ExitStack() as resources, monitor:
            role, preloads = self.python_worker_role(run.config), self.preloads(run.config)
            resources.enter_context(dedicated_python_workers(context, role, preloads))
            act = self.prepare_job(DriverSide(context, host, bind, resources), task)
            description = f"workers of engine {self.name}"
            job = SparkJob(context, self.name, self.job_name, description, act)
            resources.enter_context(job)
            return monitor.wait(job.failure)
