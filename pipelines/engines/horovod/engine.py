"""Horovod: gradients averaged by its ranks, each in a process of its own on an executor."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.conf import NO_SPECULATION, ConfRule, refuse_unfit
from pipelines.engines.horovod.elastic import Recovery, check_elastic
from pipelines.engines.horovod.ranks import RankMaker
from pipelines.engines.horovod.rendezvous import Rendezvous
from pipelines.engines.jobs import (
    SparkJob,
    await_slots,
    driver_addresses,
    task_slots,
    workers_of_their_own,
)
from pipelines.engines.local import EXTRAS, check_installed
from pipelines.errors import EngineUnavailable, WorkerLostError
from pipelines.settings import Config
from pipelines.training.ledger import Ledger
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "horovod"


class HorovodEngine:
    """Trains in children of the tasks of a Spark job.

    Not by ``horovod.spark.run``: its servers listen at every address, a single silent connection
    to one of them holds up the run, and they stay until the driver exits.

    For an elastic run (``training.elastic``) see :mod:`pipelines.engines.horovod.elastic`. Not by
    ``horovod.spark.run_elastic``: its driver does not end after a rank was killed, it wants a
    script that discovers hosts, and it needs a host that is left over.
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
            "`spark.speculation` false. Horovod uses the network by which an executor reaches the "
            "driver, or `spark.executorEnv.HOROVOD_GLOO_IFACE`: one that only the cluster can "
            "reach, since the connections by which ranks exchange gradients ask nobody who they "
            "are.",
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

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return (NO_SPECULATION,)

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
        conf = dict(session.sparkContext.getConf().getAll())
        refuse_unfit(conf, NAME, self.conf_rules(config))
        check_elastic(config.training)
        await_slots(session, NAME, config.training)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        ledger = Ledger(run, run.config.training.workers, on_metrics)
        recovery = Recovery(run, ledger, lambda: task_slots(session.sparkContext))
        part = run
        while part.first_step < part.last_step:
            try:
                return _train_once(session, part, on_metrics, ledger)
            except WorkerLostError as lost:
                part = recovery.rest(part, lost)
        return ledger.outcome()


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
