"""Orca's Estimator under the watch of the monitor. Runs on the driver.

It differs from the library in three ways. The Estimator starts a worker on each node, and asks the
JVM for their number with BigDL's jars and its own kind of Spark context; the number here is
``training.workers``. The workers' store listens at every address, on a port that another process
may have taken; the store here listens at the driver's address. The Estimator trains in Spark's
Python workers. There its process group would stay and prevent the next run, and Spark would restart
all workers after an error; each worker here is a child process.
"""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as processes
from bigdl.orca.learn.pytorch import Estimator, pytorch_pyspark_estimator

from pipelines.engines.orca.worker import (
    StepByStep,
    granules_of_worker,
    no_model,
    no_optimizer,
    run_in_task,
)
from pipelines.runs.run import WorkerTask

if TYPE_CHECKING:
    from pyspark import RDD

    from pipelines.engines.spark_engine import DriverSide

# Guards the function that the library reads from its module while it makes an Estimator.
_patching = threading.Lock()


class MonitoredEstimator:
    """Trains a run once; `task` belongs to rank 0."""

    def __init__(self, task: WorkerTask, driver: DriverSide) -> None:
        training = task.run.config.training
        with _cluster_size(training.workers, training.threads):
            self._estimator: Any = Estimator.from_torch(
                model=no_model,
                optimizer=no_optimizer,
                backend="spark",
                log_level=logging.WARNING,
                # With True, it would start an open server that prints any message.
                log_to_driver=False,
            )
        self._examples = task.run.examples_per_step
        self._bind = driver.bind
        self._estimator.worker_init_params["driver_ip"] = driver.host
        self._estimator.create_tcpstore_server = self._open_store
        # Spares one more job for the ranks: a rank is the number of its task.
        self._estimator._get_cluster_info = lambda context: ()
        # Orca's own RDD has many more partitions, and shuffles them first.
        self._estimator.workerRDD = _ChildTasks(driver.ranks(task.workers), task)

    def fit(self) -> None:
        """Start the workers, and return after their end."""
        try:
            self._estimator.fit(
                granules_of_worker, epochs=1, batch_size=self._examples, callbacks=[StepByStep()]
            )
        except BaseException as error:
            # The traceback's frames hold the store, which would listen as long as the error lives.
            traceback.clear_frames(error.__traceback__)
            raise

    def _open_store(self) -> processes.TCPStore:
        """Return the workers' store; it listens while ``fit`` refers to it."""
        listener = socket.create_server((self._bind, 0))
        port = listener.getsockname()[1]
        self._estimator.worker_init_params["driver_tcp_store_port"] = port
        return processes.TCPStore(
            self._bind,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


class _ChildTasks:
    """The RDD of Orca's workers; it runs its function in a child process of each task."""

    def __init__(self, workers: RDD[Any], task: WorkerTask) -> None:
        self._workers = workers
        self._task = task

    def barrier(self) -> _ChildTasks:
        """Return itself: the job has a barrier already."""
        return self

    def mapPartitions(self, function: Callable[[Iterator[Any]], Any]) -> RDD[Any]:  # noqa: N802 - Spark's name
        """Run the workers, without results: they write their own checkpoints."""
        return self._workers.barrier().mapPartitions(partial(run_in_task, function, self._task))


@contextmanager
def _cluster_size(workers: int, threads: int) -> Iterator[None]:
    """Give an Estimator built inside these numbers of nodes and of their cores."""
    with _patching:
        original = pytorch_pyspark_estimator.get_node_and_core_number
        pytorch_pyspark_estimator.get_node_and_core_number = lambda: (workers, threads)
        try:
            yield
        finally:
            pytorch_pyspark_estimator.get_node_and_core_number = original
