"""Elephas: workers in one Spark job, around a parameter server in threads of the driver."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.conf import NO_SPECULATION, ConfRule, refuse_unfit
from pipelines.engines.elephas.spark_model import GranuleModel
from pipelines.engines.jobs import (
    SparkJob,
    await_slots,
    driver_addresses,
    workers_of_their_own,
)
from pipelines.engines.local import check_installed
from pipelines.errors import EngineUnavailable
from pipelines.settings import Config
from pipelines.training.checkpoint import load_checkpoint
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "elephas"
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
    shardings = ("none",)
    options = ()
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return (NO_SPECULATION,)

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_installed("elephas", NAME)
        conf = dict(session.sparkContext.getConf().getAll())
        refuse_unfit(conf, NAME, self.conf_rules(config))
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
        workers = run.config.training.workers
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
            ranks = context.parallelize(range(workers), workers)
            job = SparkJob(
                context, NAME, "the Spark job", "workers of Elephas", lambda: model.fit(ranks)
            )
            afterwards.enter_context(job)
            return monitor.wait(job.failure)


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
