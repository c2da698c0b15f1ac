"""Orca's Estimator, with its workers watched by the monitor. Runs on the driver.

Three things are replaced. The Estimator asks the JVM for the number of nodes, which takes BigDL's
jars and its own kind of Spark context, and makes a worker of each: here the number is
``training.workers``. Its store, at which workers meet, listens at every address, on a port that may
have been taken since it was chosen: here it listens at the driver's address. It trains in Spark's
Python workers, where its process group would stay and prevent the next run, and where Spark would
restart all after an error: here each worker is a child process.
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

# Of what the library reads from its own module while an Estimator is made.
_patching = threading.Lock()


class MonitoredEstimator:
    """Trains a run once; `task` is that of rank 0."""

    def __init__(self, task: WorkerTask, driver: DriverSide) -> None:
        training = task.run.config.training
        with _cluster_size(training.workers, training.threads):
            self._estimator: Any = Estimator.from_torch(
                model=no_model,
                optimizer=no_optimizer,
                backend="spark",
                log_level=logging.WARNING,
                # It would start a server that prints whatever anybody sends to it.
                log_to_driver=False,
            )
        self._examples = task.run.examples_per_step
        self._bind = driver.bind
        self._estimator.worker_init_params["driver_ip"] = driver.host
        self._estimator.create_tcpstore_server = self._open_store
        # It would find the ranks by one more job: here a rank is the number of its task.
        self._estimator._get_cluster_info = lambda context: ()
        # Not Orca's, which is many times as many partitions, shuffled together first.
        self._estimator.workerRDD = _ChildTasks(driver.ranks(task.workers), task)

    def fit(self) -> None:
        """Start the workers, and return when all are gone."""
        try:
            self._estimator.fit(
                granules_of_worker, epochs=1, batch_size=self._examples, callbacks=[StepByStep()]
            )
        except BaseException as error:
            # The frames that it passed through hold the store, which would listen until somebody
            # has forgotten the error.
            traceback.clear_frames(error.__traceback__)
            raise

    def _open_store(self) -> processes.TCPStore:
        """Return the store where the workers meet; it listens as long as ``fit`` refers to it."""
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
    """The RDD of Orca's workers, which runs its function in a child process of each task."""

    def __init__(self, workers: RDD[Any], task: WorkerTask) -> None:
        self._workers = workers
        self._task = task

    def barrier(self) -> _ChildTasks:
        """Return itself: there is a barrier."""
        return self

    def mapPartitions(self, function: Callable[[Iterator[Any]], Any]) -> RDD[Any]:  # noqa: N802 - Spark's name
        """Run the workers, without results: they write their checkpoints themselves."""
        return self._workers.barrier().mapPartitions(partial(run_in_task, function, self._task))


@contextmanager
def _cluster_size(workers: int, threads: int) -> Iterator[None]:
    """Make an Estimator built inside take this for the number of nodes and their cores."""
    with _patching:
        original = pytorch_pyspark_estimator.get_node_and_core_number
        pytorch_pyspark_estimator.get_node_and_core_number = lambda: (workers, threads)
        try:
            yield
        finally:
            pytorch_pyspark_estimator.get_node_and_core_number = original
