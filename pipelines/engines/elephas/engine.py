"""Elephas: workers in one Spark job, around a parameter server in threads of the driver."""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.elephas.spark_model import GranuleModel
from pipelines.engines.jobs import (
    await_slots,
    driver_addresses,
    spark_cause,
    workers_of_their_own,
)
from pipelines.engines.local import check_installed
from pipelines.errors import EngineError, EngineUnavailable
from pipelines.settings import Config
from pipelines.training.checkpoint import load_checkpoint
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NAME = "elephas"
JOB_END_SECONDS = 20.0
_NEEDS = (
    "As many task slots at once as workers (cores of the executors / `spark.task.cpus`), and"
    " `spark.speculation` false. In the driver (`spark.driver.memoryOverhead`), "
)
_SHARED = _NEEDS + "four times the size of the weights, and twice more for each worker."
_AVERAGED = _NEEDS + "seven times the size of the weights, and three times more for each worker."


class ElephasEngine:
    """Trains in the tasks of a Spark job, which exchange arrays with the driver."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="With one worker the loss curve of `local`. With more, that of averaging "
            "weights and optimiser every `training.round_steps` steps; a run repeats exactly.",
            choose_when="The network is slow: arrays travel once in `training.round_steps` steps.",
            needs=_AVERAGED,
        ),
        "async": Mode(
            guarantee="The updates of `local`, each from gradients at parameters that may lack "
            "the newest ones; with `training.max_staleness` 0 its loss curve.",
            choose_when="Executors are unlike, so that waiting for the slowest costs much.",
            needs=_SHARED,
        ),
        "hogwild": Mode(
            guarantee="As `async`, but for updates that are made at the same moment, of which "
            "one may be lost in some elements.",
            choose_when="There are so many workers that they wait for one another's updates.",
            needs=_SHARED,
        ),
    }
    frameworks = ("tensorflow",)
    feeds = ("lanes", "memory")
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_installed("elephas", NAME)
        if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
            raise EngineUnavailable(
                "spark.speculation", f"engine {NAME} cannot run a worker twice", "set false"
            )
        _check_negatives(config)
        await_slots(session, NAME, config.training)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        context = session.sparkContext
        host, bind = driver_addresses(context)
        monitor = monitor_for(self.name, run, on_metrics, host, bind)
        failures: list[EngineError] = []
        # Entered first: the job ends after the monitor has told the workers to leave.
        with ExitStack() as afterwards, monitor:
            model = GranuleModel(
                run,
                load_checkpoint(run.run_folder, run.first_step),
                host=host,
                bind=bind,
                monitor=monitor.address,
                token=monitor.token,
            )
            afterwards.callback(model.close)
            role = f"{NAME}, {run.config.training.threads} threads"
            afterwards.enter_context(workers_of_their_own(context, role))
            afterwards.enter_context(_Job(context, model, run.config.training.workers, failures))
            return monitor.wait(lambda: failures[0] if failures else None)


def _check_negatives(config: Config) -> None:
    """Refuses negatives of a step that no worker sees as a whole.

    Raises:
        EngineUnavailable: With what would be right.
    """
    training, objective = config.training, config.objective
    if training.mode == "sync" and training.workers > 1 and objective.negatives == "step":
        raise EngineUnavailable(
            "objective.negatives",
            f"the workers of engine {NAME} do not meet inside a step, so it cannot be `step`",
            "set it to granule, or training.mode to async",
        )


class _Job(threading.Thread):
    """The Spark job, on a thread beside the one that watches; ended with its context."""

    def __init__(
        self,
        context: SparkContext,
        model: GranuleModel,
        workers: int,
        failures: list[EngineError],
    ) -> None:
        super().__init__(name=NAME, daemon=True)
        self._context = context
        self._model = model
        self._workers = workers
        self._failures = failures
        self._group = f"{NAME}-{uuid.uuid4().hex[:8]}"

    def run(self) -> None:
        """Runs the job; its error is left for the thread that watches."""
        try:
            self._context.setJobGroup(self._group, "workers of Elephas", interruptOnCancel=True)
            ranks = self._context.parallelize(range(self._workers), self._workers)
            self._model.fit(ranks)
        except Exception as error:  # noqa: BLE001 - carried to the waiting thread
            self._failures.append(EngineError(NAME, f"the Spark job failed ({spark_cause(error)})"))

    def __enter__(self) -> _Job:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the end of the job, which is called off after an error."""
        if kind is not None:
            self._context.cancelJobGroup(self._group)
        self.join(JOB_END_SECONDS)
        if self.is_alive():
            logger.warning("the Spark job of the workers goes on; it is called off")
            self._context.cancelJobGroup(self._group)
