"""Spark's TorchDistributor, with its workers watched by the monitor instead of by Spark.

A distributor runs a Spark job with a barrier: each of its tasks runs torchrun, which starts one
worker.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
from pyspark.ml.torch.distributor import TorchDistributor

from pipelines.engines.processes import end_with_parent
from pipelines.runs.run import WorkerTask
from pipelines.spark.errors import spark_cause
from pipelines.training.control.reporter import report_lost

if TYPE_CHECKING:
    import pyarrow as pa


class MonitoredDistributor(TorchDistributor):  # type: ignore[misc] # the library has no types
    """Starts workers, and leaves out what else the library does; mixed into its distributors.

    The library would listen on the driver for lines to print, from anybody. A task that fails
    would have Spark start all of them again, so none fails: it reports to the monitor instead.
    Where Spark does start all again since an executor was lost, the monitor refuses workers that
    connect a second time.
    """

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """Runs a function in every worker. Runs on the driver.

        Args:
            train_object: The function, which can be pickled.
            args: Its only argument, the task of rank 0.
            kwargs: None are known.
        """
        self._run(train_object, _run_script, *args, **kwargs)

    def _run_distributed_training(self, *arguments: Any, **named: Any) -> None:
        # No server for the workers' lines: the library's clients take -1 for one that failed.
        self.driver_address, self.log_streaming_server_port = "", -1
        # Two functions of the library, the one to run, no data frame, and then its arguments.
        *_, task = arguments
        function = self._get_spark_task_function(*arguments, **named)
        tasks = self.spark.range(0, self.num_tasks, 1, self.num_tasks)
        reporting = partial(_run_task, function, task)
        tasks.mapInArrow(reporting, "chunk binary", barrier=True).collect()


class MonitoredDeepspeedDistributor(MonitoredDistributor, DeepspeedTorchDistributor):  # type: ignore[misc] # the library has no types
    """DeepSpeed's, started and watched as PyTorch's is."""


def own_task(task: WorkerTask) -> WorkerTask:
    """The task of this process, or of the worker that this Spark task has started.

    Runs on an executor, where the library has set the rank.

    Args:
        task: Of rank 0.
    """
    return replace(task, rank=int(os.environ["RANK"]))


def run_torchrun_worker(stepper: str, task: WorkerTask) -> bool:
    """A worker, from its first to its last moment. Runs in torchrun's child on an executor.

    Args:
        stepper: A name of ``pipelines.training.steppers.STEPPERS``.
        task: Of rank 0.
    """
    end_with_parent()
    from pipelines.training.collectives.process_group import (
        ProcessGroupCollectives,
        process_group_cleanup,
    )
    from pipelines.training.worker import run_worker

    own = own_task(task)
    with process_group_cleanup():
        collectives = partial(ProcessGroupCollectives, own.run.config.training)
        return run_worker(own, collectives, stepper=stepper)


def _run_script(parameters: dict[str, Any], path: str) -> None:
    """torchrun, in a process that ends with this one. Runs on an executor."""
    arguments, workers = TorchDistributor._get_torchrun_args(
        parameters["local_mode"], parameters["num_processes"]
    )
    # The library's own commands start one more interpreter, or let torchrun outlive the task.
    command = [sys.executable, "-m", "pipelines.engines.torchrun", *arguments]
    # torchrun's folder of logs, empty here, which it would leave behind elsewhere.
    command += [f"--nproc_per_node={workers}", f"--log_dir={Path(path).parent}", path]
    TorchDistributor._execute_command(command)


def _run_task(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    task: WorkerTask,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The library's Spark task; reports its errors to the monitor. Runs on an executor."""
    before = dict(os.environ)
    # Deleted with the executor, where this process may be killed before it can tidy up.
    tempfile.tempdir = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    try:
        yield from function(batches)
    except Exception as error:
        if "RANK" not in os.environ:
            raise  # No worker was started, on any executor; Spark says why.
        with suppress(OSError):  # The run is over.
            report_lost(own_task(task), spark_cause(error))
    finally:
        # Spark uses this process again, and the library keeps the GPUs that it finds here.
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
