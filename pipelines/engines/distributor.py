"""Spark's TorchDistributor, with its workers watched by the monitor instead of by Spark.

A distributor runs a Spark job with a barrier: each of its tasks runs torchrun's agent, which starts
one worker.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
from pyspark.ml.torch.distributor import TorchDistributor

from pipelines.engines.spark_engine import run_in_child
from pipelines.runs.run import WorkerTask
from pipelines.spark.errors import spark_cause
from pipelines.spark.jobs import ranks_of
from pipelines.training.control.reporter import report_lost

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.resource import ResourceProfile


class MonitoredDistributor(TorchDistributor):  # type: ignore[misc] # the library has no types
    """Starts workers, and leaves out what else the library does; mixed into its distributors.

    The library would listen on the driver for lines to print, from anybody. A task that fails
    would have Spark start all of them again, so none fails: it reports to the monitor instead.
    Where Spark does start all again since an executor was lost, the monitor refuses workers that
    connect a second time.

    Attributes:
        profile: Of the tasks; None for the session's.
    """

    profile: ResourceProfile | None = None

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """Runs a stepper in every worker. Runs on the driver.

        Args:
            train_object: A name of ``pipelines.catalog.STEPPERS``.
            args: Its only argument, the task of rank 0.
            kwargs: None are known.
        """
        self._run(train_object, _run_agent, *args, **kwargs)

    def _get_num_tasks(self) -> int:
        # The library would read GPUs of the session's conf, which a profile does not change; a
        # task has one at most here.
        return int(self.num_processes)

    def _run_distributed_training(self, *arguments: Any, **named: Any) -> None:
        # No server for the workers' lines: the library's clients take -1 for one that failed.
        self.driver_address, self.log_streaming_server_port = "", -1
        # Two functions of the library, the one to run, no data frame, and then its arguments.
        *_, task = arguments
        function = self._get_spark_task_function(*arguments, **named)
        # Not the library's data frame, whose planning and compiling takes longer than all the rest.
        tasks = ranks_of(self.spark.sparkContext, self.num_tasks, self.profile)
        tasks.barrier().mapPartitions(partial(_run_task, function, task)).collect()


class MonitoredDeepspeedDistributor(MonitoredDistributor, DeepspeedTorchDistributor):  # type: ignore[misc] # the library has no types
    """DeepSpeed's, started and watched as PyTorch's is."""


def _own_task(task: WorkerTask) -> WorkerTask:
    """The task of this process. Runs on an executor, where the library has set the rank.

    Args:
        task: Of rank 0.
    """
    return replace(task, rank=int(os.environ["RANK"]))


def _run_agent(parameters: dict[str, Any], stepper: str, task: WorkerTask) -> None:
    """The agent of torchrun and its worker, in a child process each. Runs on an executor.

    The library would start an interpreter for each, and these import PyTorch anew.
    """
    from pyspark import BarrierTaskContext

    from pipelines.engines.torchrun import announce, open_listener, run_torchrun

    own = _own_task(task)
    listener = open_listener(own)
    announce(listener, BarrierTaskContext.get().allGather)
    arguments, workers = TorchDistributor._get_torchrun_args(
        parameters["local_mode"], parameters["num_processes"]
    )
    # torchrun's folder of logs, empty here, which it would leave behind elsewhere.
    with tempfile.TemporaryDirectory() as folder:
        arguments += [f"--nproc_per_node={workers}", f"--log_dir={folder}"]
        run_in_child(own, partial(run_torchrun, arguments, stepper, listener), listener)


def _run_task(
    function: Callable[[Iterator[Any]], Iterator[pa.RecordBatch]],
    task: WorkerTask,
    items: Iterator[Any],
) -> Iterator[Any]:
    """The library's Spark task; reports its errors to the monitor. Runs on an executor."""
    before = dict(os.environ)
    # Deleted with the executor, where this process may be killed before it can tidy up.
    tempfile.tempdir = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
    try:
        deque(function(items), maxlen=0)  # It yields what the worker returns, which is nothing.
    except Exception as error:
        if "RANK" not in os.environ:
            raise  # No worker was started, on any executor; Spark says why.
        with suppress(OSError):  # The run is over.
            report_lost(_own_task(task), spark_cause(error))
    finally:
        # Spark uses this process again, and the library keeps the GPUs that it finds here.
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
    return iter(())
