"""What engines share that start torchrun through Spark's distributors.

A distributor is a Spark job with a barrier: each of its tasks runs torchrun, which starts one
worker. The monitor watches the workers, as those of every engine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml.torch.distributor import TorchDistributor

from pipelines.engines.base import OnMetrics, monitor_for
from pipelines.engines.conf import GPU_AMOUNT, LASTING_WORKERS, ConfRule, refuse_unfit
from pipelines.engines.jobs import (
    SparkJob,
    await_slots,
    driver_addresses,
    spark_cause,
    workers_of_their_own,
)
from pipelines.engines.local import check_installed
from pipelines.engines.processes import end_with_parent
from pipelines.settings import Config
from pipelines.training.reporter import report_lost
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

NEEDS = (
    "As many task slots at once as workers (cores of the executors / `spark.task.cpus`),"
    " `spark.speculation` and `spark.dynamicAllocation.enabled` false. With GPUs,"
    " `spark.task.resource.gpu.amount` 1. A network that only the cluster can reach: torchrun's"
    " store and the workers' exchange ask nobody who they are."
)


@dataclass(frozen=True)
class WorkerMaker:
    """Makes the task of a worker where its rank is known; travels to the executors.

    Attributes:
        task: Of rank 0.
    """

    task: WorkerTask

    def here(self) -> WorkerTask:
        """The task of this process, or of the worker that this Spark task has started."""
        return replace(self.task, rank=int(os.environ["RANK"]))


class HeldDistributor(TorchDistributor):  # type: ignore[misc] # the library has no types
    """Leaves out what the library does beside starting; mixed into its distributors.

    It would listen on the driver, for lines that it prints whoever sends them. A task that fails
    would have Spark start all of them again, so none does: it tells the monitor instead. Where
    Spark does so since an executor was lost, the monitor turns away whoever comes twice.
    """

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """Runs a function in every worker. Runs on the driver.

        Args:
            train_object: A function of a module.
            args: Its only argument, a :class:`WorkerMaker`.
            kwargs: None are known.
        """
        self._run(train_object, _run_script, *args, **kwargs)

    def _run_distributed_training(self, *arguments: Any, **named: Any) -> None:
        # No server for the workers' lines: the library's clients take -1 for one that failed.
        self.driver_address, self.log_streaming_server_port = "", -1
        # Two functions of the library, the one to run, no data frame, and then its arguments.
        *_, maker = arguments
        function = self._get_spark_task_function(*arguments, **named)
        tasks = self.spark.range(0, self.num_tasks, 1, self.num_tasks)
        held = partial(_hold, function, maker)
        tasks.mapInArrow(held, "chunk binary", barrier=True).collect()


def _run_script(parameters: dict[str, Any], path: str) -> None:
    """torchrun, in a process that ends with this one. Runs on an executor."""
    arguments, workers = TorchDistributor._get_torchrun_args(
        parameters["local_mode"], parameters["num_processes"]
    )
    # The library's own commands start one interpreter more, or let torchrun outlive the task.
    command = [sys.executable, "-m", "pipelines.engines.torchrun", *arguments]
    # Its logs are a folder, empty here, that it would leave behind.
    command += [f"--nproc_per_node={workers}", f"--log_dir={Path(path).parent}", path]
    TorchDistributor._execute_command(command)


def _hold(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    maker: WorkerMaker,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The library's task, whose errors go to the monitor. Runs on an executor."""
    before = dict(os.environ)
    # Deleted with the executor, where this process may be killed before it can tidy up.
    tempfile.tempdir = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    try:
        yield from function(batches)
    except Exception as error:
        if "RANK" not in os.environ:
            raise  # Nobody was started, on any executor; Spark says why.
        with suppress(OSError):  # The run is over.
            report_lost(maker.here(), spark_cause(error))
    finally:
        # Spark uses this process again, and the library keeps the GPUs that it finds here.
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None


def distributor_rules(ignore_ssl: str) -> tuple[ConfRule, ...]:
    """What a distributor needs of the Spark conf.

    Args:
        ignore_ssl: Conf key by which the user accepts traffic that Spark does not encrypt.
    """
    return (
        *LASTING_WORKERS,
        ConfRule(
            key="spark.ssl.enabled",
            value="false",
            why="has its workers exchange gradients in clear text",
            unless=ignore_ssl,
        ),
        ConfRule(key=GPU_AMOUNT, value="1", most=1, why="has each worker compute on one GPU"),
    )


def check_cluster(
    session: SparkSession, engine: str, rules: Sequence[ConfRule], config: Config
) -> None:
    """Refuses a cluster on which a distributor cannot start. Runs on the driver.

    Args:
        session: The Spark session.
        engine: Name of the engine.
        rules: Of :func:`distributor_rules`.
        config: The configuration.

    Raises:
        EngineUnavailable: With the conf key that makes it run.
    """
    check_installed("torch", engine)
    refuse_unfit(dict(session.sparkContext.getConf().getAll()), engine, rules)
    await_slots(session, engine, config.training)


def train_distributed(
    session: SparkSession,
    run: TrainingRun,
    on_metrics: OnMetrics,
    engine: str,
    make: Callable[[int, bool], HeldDistributor],
    work: Callable[[WorkerMaker], bool],
) -> TrainingOutcome:
    """A run from first to last. Runs on the driver.

    Args:
        session: The Spark session.
        run: What to train.
        on_metrics: Called with each metrics line.
        engine: Name of the engine.
        make: Makes the distributor, for so many workers, with or without GPUs.
        work: What each worker does; a function of a module.

    Raises:
        EngineError: The run failed.
    """
    context, workers = session.sparkContext, run.config.training.workers
    host, bind = driver_addresses(context)
    monitor = monitor_for(engine, run, on_metrics, host, bind)
    task = WorkerTask(
        run=run, rank=0, workers=workers, monitor=monitor.address, token=monitor.token
    )
    distributor = make(workers, _gpus_of_a_task(dict(context.getConf().getAll())) == 1)
    # Entered first: the job ends after the monitor has told the workers to leave.
    with ExitStack() as afterwards, monitor:
        afterwards.enter_context(workers_of_their_own(context, engine))
        start = partial(distributor.run, work, WorkerMaker(task))
        job = SparkJob(context, engine, "the Spark job", f"workers of engine {engine}", start)
        afterwards.enter_context(job)
        return monitor.wait(job.failure)


def work_with(maker: WorkerMaker, stepper: str | None) -> bool:
    """A worker, from its first to its last moment. Runs in torchrun's child on an executor.

    Args:
        maker: Makes the worker's task.
        stepper: Who computes, of ``pipelines.training.worker.STEPPERS``.
    """
    end_with_parent()
    from pipelines.training.process_group import ProcessGroupExchange, left_in_the_end
    from pipelines.training.worker import run_worker

    task = maker.here()
    with left_in_the_end():
        exchange = partial(ProcessGroupExchange, task.run.config.training)
        return run_worker(task, exchange, stepper=stepper)


def _gpus_of_a_task(conf: Mapping[str, str]) -> int:
    return int(conf.get(GPU_AMOUNT) or 0)
