"""Orca's Estimator, with its workers held by the monitor. Runs on the driver.

Three of its habits are replaced. It asks the JVM for the number of nodes, which takes BigDL's jars
and its own kind of Spark context to know, and makes a worker of each node: here it is told
``training.workers``. It lets the store at which its workers meet listen at every address, on a port
that somebody else may have taken since it looked. And it trains in Spark's Python workers, where
its process group would stay and refuse the next run, and where Spark would start all of them again
after an error.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as processes
from bigdl.orca import OrcaContext
from bigdl.orca.learn.pytorch import Estimator, pytorch_pyspark_estimator

from pipelines.engines.bigdl.orca_worker import (
    StepByStep,
    granules_of_worker,
    hold,
    no_model,
    no_optimizer,
)
from pipelines.training.run import WorkerTask

if TYPE_CHECKING:
    from pyspark import RDD

_telling = threading.Lock()


class HeldEstimator:
    """Trains a run once.

    Args:
        task: Of rank 0.
        host: Address by which the executors reach the driver.
        bind: Address to listen at.
    """

    def __init__(self, task: WorkerTask, host: str, bind: str) -> None:
        training = task.run.config.training
        with _told(training.workers, training.threads):
            self._estimator: Any = Estimator.from_torch(
                model=no_model,
                optimizer=no_optimizer,
                backend="spark",
                log_level=logging.WARNING,
                # By a server that prints whatever is sent to it.
                log_to_driver=False,
            )
        self._examples = task.run.examples_per_step
        self._bind = bind
        self._estimator.worker_init_params["driver_ip"] = host
        self._estimator.create_tcpstore_server = self._open_store
        # To find ranks by, in a job more: here a rank is the number of its task.
        self._estimator._get_cluster_info = lambda context: ()
        # Not Orca's, which is many times as many partitions, shuffled together first.
        ranks = OrcaContext.get_spark_context().parallelize(range(task.workers), task.workers)
        self._estimator.workerRDD = _HeldTasks(ranks, task)

    def fit(self) -> None:
        """Starts the workers, and returns when all are gone."""
        self._estimator.fit(
            granules_of_worker, epochs=1, batch_size=self._examples, callbacks=[StepByStep()]
        )

    def _open_store(self) -> processes.TCPStore:
        """Where the workers meet; it listens as long as somebody holds it, which ``fit`` does."""
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


class _HeldTasks:
    """The RDD of Orca's workers: what it is to do in a task is done in a child of the task."""

    def __init__(self, workers: RDD[Any], task: WorkerTask) -> None:
        self._workers = workers
        self._task = task

    def barrier(self) -> _HeldTasks:
        """Itself: there is a barrier."""
        return self

    def mapPartitions(self, function: Callable[[Iterator[Any]], Any]) -> RDD[Any]:  # noqa: N802 - Spark's name
        """Without results: the workers write their checkpoints themselves."""
        return self._workers.barrier().mapPartitions(partial(hold, function, self._task))


@contextmanager
def _told(workers: int, threads: int) -> Iterator[None]:
    """Tells an Estimator that is made inside how many nodes there are, and their cores."""
    with _telling:
        asked = pytorch_pyspark_estimator.get_node_and_core_number
        pytorch_pyspark_estimator.get_node_and_core_number = lambda: (workers, threads)
        try:
            yield
        finally:
            pytorch_pyspark_estimator.get_node_and_core_number = asked
