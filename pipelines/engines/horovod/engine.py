"""Horovod: gradients averaged by its ranks, each in a process of its own on an executor."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.horovod.ranks import RankMaker
from pipelines.engines.horovod.rendezvous import Rendezvous
from pipelines.engines.jobs import (
    SparkJob,
    await_slots,
    driver_addresses,
    workers_of_their_own,
)
from pipelines.engines.local import EXTRAS, check_installed
from pipelines.errors import EngineUnavailable, WorkerLostError
from pipelines.settings import Config
from pipelines.training.checkpoint import checkpoint_steps
from pipelines.training.ledger import Ledger
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NAME = "horovod"


class HorovodEngine:
    """Trains in children of the tasks of a Spark job.

    Not by ``horovod.spark.run``: its servers listen at every address, a single silent connection
    to one of them holds up the run, and they stay until the driver exits.

    An elastic run (``training.elastic``) is one start of all ranks after the other, each of fewer
    ranks and from the newest checkpoint. Not by ``horovod.spark.run_elastic``: its driver does
    not end after a rank was killed, it wants a script that discovers hosts, and it needs a host
    that is left over. The steps do not depend on the number of workers, so nothing is lost but
    the steps since the checkpoint.
    """

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers; near it with "
            "`training.compression: fp16`.",
            choose_when="Executors are alike, and may be lost: with `training.elastic` fewer "
            "workers go on. Or gradients are to travel as fp16.",
            needs="Horovod, compiled for the executors ([the environment](environment.md)). As "
            "many task slots at once as workers (cores of the executors / `spark.task.cpus`), and "
            "`spark.speculation` false. A network that only the cluster can reach: the "
            "connections by which Horovod's ranks exchange gradients ask nobody who they are.",
        )
    }
    frameworks = ("tensorflow", "torch")
    feeds = ("lanes", "memory")
    shardings = ("none",)
    options = ("compression", "elastic")
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        framework = config.training.framework
        check_installed(framework, EXTRAS[framework])
        if find_spec("horovod") is None:
            raise EngineUnavailable(
                "training.engine",
                "horovod is not installed",
                "`make horovod` builds it for driver and executors, see docs/environment.md",
            )
        if session.sparkContext.getConf().get("spark.speculation", "false") == "true":
            raise EngineUnavailable(
                "spark.speculation", f"engine {NAME} cannot run a worker twice", "set false"
            )
        await_slots(session, NAME, config.training)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        ledger = Ledger(run, run.config.training.workers, on_metrics)
        part = run
        # Each part has fewer workers than the one before.
        while part.first_step < part.last_step:
            try:
                return _train_once(session, part, on_metrics, ledger)
            except WorkerLostError as lost:
                rest = rest_of(part, ledger.next_step)
                # Workers that were never ready are no loss, but a cluster that does not fit.
                if rest is None or not (lost.began or part is not run):
                    raise
                workers = rest.config.training.workers
                logger.warning("%s; %s workers go on from step %s", lost, workers, rest.first_step)
                ledger.go_back(rest.first_step, workers)
                part = rest
        return ledger.outcome()


def rest_of(run: TrainingRun, made: int) -> TrainingRun | None:
    """What is left of a run that has lost a worker, for the workers that are left.

    Args:
        run: The run, or what was left of it before.
        made: The steps before this one are accounted for.

    Returns:
        It goes on from the newest checkpoint; None if nobody is left, there is no such
        checkpoint, or the run is not elastic.
    """
    training = run.config.training
    granules = training.granules_per_step
    fewer = [n for n in range(1, training.workers) if granules % n == 0]
    known = [step for step in checkpoint_steps(run.run_folder) if step <= made]
    if not (training.elastic and fewer and known):
        return None
    training = training.model_copy(update={"workers": fewer[-1]})
    config = run.config.model_copy(update={"training": training})
    return replace(run, config=config, first_step=known[-1])


def _train_once(
    session: SparkSession, run: TrainingRun, on_metrics: OnMetrics, ledger: Ledger
) -> TrainingOutcome:
    """Starts all ranks, and returns when all are done and gone."""
    context, workers = session.sparkContext, run.config.training.workers
    host, bind = driver_addresses(context)
    monitor = monitor_for(NAME, run, on_metrics, host, bind, ledger=ledger)
    task = WorkerTask(
        run=run, rank=0, workers=workers, monitor=monitor.address, token=monitor.token
    )
    # Entered first: the job ends after the monitor has told the workers to leave.
    with ExitStack() as afterwards, monitor:
        store = afterwards.enter_context(Rendezvous(host, bind))
        maker = RankMaker(task=task, store=store.address, token=store.token)
        afterwards.enter_context(workers_of_their_own(context, NAME))
        ranks = context.parallelize(range(workers), workers)
        job = SparkJob(
            context,
            NAME,
            "the Spark job",
            f"workers of engine {NAME}",
            lambda: ranks.foreachPartition(maker.start),
        )
        afterwards.enter_context(job)
        return monitor.wait(job.failure)
