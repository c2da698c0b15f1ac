"""Elephas's worker, with the step loops of this package in place of its own. Runs on an executor.

Elephas's turns its partition into one array and calls Keras's ``fit`` on it, with a fresh
optimiser at every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark import TaskContext

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.enums.frequency import Frequency
    from elephas.worker import AsynchronousSparkWorker

from pipelines.engines.elephas.servers import GranuleClient
from pipelines.errors import PipelineError
from pipelines.runs.run import WorkerTask
from pipelines.training.asynchronous import train_asynchronously, train_in_rounds
from pipelines.training.loop import Loop, run_worker
from pipelines.training.parameter_server.client import (
    Client,
    ServedParameters,
    ServedRounds,
    means_server_lost,
)

_LOOPS: Mapping[str, tuple[Loop, Callable[[Client, WorkerTask], Any]]] = {
    "sync": (train_in_rounds, ServedRounds),
    "async": (train_asynchronously, ServedParameters),
    "hogwild": (train_asynchronously, ServedParameters),
}


class GranuleWorker(AsynchronousSparkWorker):  # type: ignore[misc] # the library has no types
    """Trains one worker's share of the run.

    Args:
        json: The model, as Elephas writes it.
        client: Of the parameter server.
        task: Of rank 0; the others differ by their rank alone.
    """

    def __init__(self, json: str, client: GranuleClient, task: WorkerTask) -> None:
        super().__init__(
            json=json,
            parameters=None,
            client=client,
            train_config={},
            frequency=Frequency.BATCH,
            master_optimizer=None,
            master_loss=None,
            master_metrics=None,
            custom_objects=None,
        )
        self._task = task

    def train(self, data_iterator: Iterable[int]) -> Iterator[None]:
        """Trains from the first step to the last.

        Args:
            data_iterator: The rank of the worker.

        Returns:
            Nothing: losses and errors go to the driver's monitor.

        Raises:
            PipelineError: Spark has started a lost worker a second time.
        """
        (rank,) = data_iterator
        context = TaskContext.get()
        assert context is not None, "runs in a Spark task"
        if context.attemptNumber() > 0:
            raise PipelineError(f"the task of worker {rank} was lost")
        task = replace(self._task, rank=rank)
        loop, collectives = _LOOPS[task.run.config.training.mode]
        reach = partial(collectives, self.client.connection, task)
        run_worker(task, reach, loop=loop, means_peer_lost=means_server_lost)
        return iter(())
