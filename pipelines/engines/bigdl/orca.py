"""BigDL's Orca: PyTorch on executors, in the workers of Orca's Estimator.

What is Orca's: ``Estimator.from_torch(backend="spark")`` and its ``fit``. It runs the Spark job
with a barrier, gives PyTorch its threads, has the workers meet at a store on the driver and join
one process group of Gloo, and its loop goes through a worker's batches, one an optimiser update.

What is not: a batch is the worker's granules of a step, and an update is made by the stepper that
every engine has, with gradients averaged in Orca's process group. So the order of the steps, the
noise, the schedule, checkpoints and metrics are those of ``local``. Orca's model, which it would
wrap and bring back through Spark, stands empty.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from pipelines.engines.base import OnMetrics, monitor_for
from pipelines.engines.conf import GPU_AMOUNT, LASTING_WORKERS, ConfRule, refuse_unfit
from pipelines.engines.jobs import (
    SparkJob,
    await_slots,
    driver_addresses,
    workers_of_their_own,
)
from pipelines.engines.local import check_installed
from pipelines.quiet import quiet_import
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "bigdl"

ORCA_NEEDS = (
    "`training.framework: torch` (Orca): as many task slots at once as workers (cores of the"
    " executors / `spark.task.cpus`), `spark.speculation` and `spark.dynamicAllocation.enabled`"
    " false; no jars and no GPUs. A network that only the cluster can reach: the store on the"
    " driver at which the workers meet, and the connections by which they exchange gradients, ask"
    " nobody who they are."
)
ORCA_RULES = (
    *LASTING_WORKERS,
    ConfRule(
        key=GPU_AMOUNT,
        value="0",
        most=0,
        why="computes on CPUs, and would keep GPUs from others (engine torch uses them)",
    ),
)


def check_orca(session: SparkSession, config: Config) -> None:
    """Looks at what can be known before the start. Runs on the driver.

    Raises:
        EngineUnavailable: With the install command or the conf key that makes it run.
    """
    for module in ("torch", "bigdl", "bigdl.orca"):
        check_installed(module, NAME)
    refuse_unfit(dict(session.sparkContext.getConf().getAll()), NAME, ORCA_RULES)
    await_slots(session, NAME, config.training)


def train_with_orca(
    session: SparkSession, run: TrainingRun, on_metrics: OnMetrics
) -> TrainingOutcome:
    """A run from first to last. Runs on the driver.

    Args:
        session: The Spark session; Orca's own contexts are not needed.
        run: What to train.
        on_metrics: Called with each metrics line.

    Raises:
        EngineError: The run failed; no process and no job of it is left.
    """
    with quiet_import():
        from pipelines.engines.bigdl.orca_estimator import HeldEstimator
    context = session.sparkContext
    host, bind = driver_addresses(context)
    monitor = monitor_for(NAME, run, on_metrics, host, bind)
    workers = run.config.training.workers
    task = WorkerTask(
        run=run, rank=0, workers=workers, monitor=monitor.address, token=monitor.token
    )
    # Entered first: the job ends after the monitor has told the workers to leave.
    with ExitStack() as afterwards, monitor:
        afterwards.enter_context(workers_of_their_own(context, f"{NAME}-orca"))
        estimator = HeldEstimator(task, host, bind)
        job = SparkJob(context, NAME, "Orca's fit", f"workers of engine {NAME}", estimator.fit)
        afterwards.enter_context(job)
        return monitor.wait(job.failure)
