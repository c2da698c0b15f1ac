"""Elephas's Spark model, with one Spark job and one parameter server for a whole run.

In the library's own synchronous mode every epoch is a Spark job, and all workers' weights pass
through the driver's JVM at its end. Here the workers of every mode live as long as the run, and
send their arrays to the parameter server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    from elephas.enums.frequency import Frequency
    from elephas.enums.modes import Mode
    from elephas.parameter.factory import ClientServerFactory
    from elephas.spark_model import AsynchronousSparkModel

from pipelines.engines.elephas.model import encoder_model
from pipelines.engines.elephas.servers import GranuleClient, GranuleHttpServer, GranuleSocketServer
from pipelines.engines.elephas.worker import GranuleWorker
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.control.authenticated_server import Identity
from pipelines.training.parameter_server.client import HttpClient, SocketClient
from pipelines.training.parameter_server.updates import STORES

if TYPE_CHECKING:
    from pyspark import RDD

MODES = {"sync": Mode.SYNCHRONOUS, "async": Mode.ASYNCHRONOUS, "hogwild": Mode.HOGWILD}


class GranuleHttpFactory(ClientServerFactory):  # type: ignore[misc] # the library has no types
    """Found by Elephas under its type."""

    _type = "granules-http"

    def create_client(self, port: int) -> GranuleClient:
        """A client that does not know its server yet."""
        return GranuleClient(HttpClient)

    def create_server(self, *args: Any, **kwargs: Any) -> GranuleHttpServer:
        """A server that holds nothing yet."""
        return GranuleHttpServer(*args, **kwargs)


class GranuleSocketFactory(ClientServerFactory):  # type: ignore[misc] # the library has no types
    """Found by Elephas under its type."""

    _type = "granules-socket"

    def create_client(self, port: int) -> GranuleClient:
        """A client that does not know its server yet."""
        return GranuleClient(SocketClient)

    def create_server(self, *args: Any, **kwargs: Any) -> GranuleSocketServer:
        """A server that holds nothing yet."""
        return GranuleSocketServer(*args, **kwargs)


class GranuleModel(AsynchronousSparkModel):  # type: ignore[misc] # the library has no types
    """Trains a run from a checkpoint; its master network holds the result. Runs on the driver.

    Listens from the start, so :meth:`close` must be called in the end.

    Args:
        task: Of rank 0; the others differ by their rank alone.
        checkpoint: The state to begin with.
        host: Address by which the executors reach the driver.
        bind: Address to listen at.
        identity: With which connections to the parameter server are encrypted, if they are.
    """

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        *,
        host: str,
        bind: str,
        identity: Identity | None,
    ) -> None:
        training = task.run.config.training
        super().__init__(
            encoder_model(checkpoint.spec, checkpoint.encoder_weights, training),
            mode=MODES[training.mode],
            frequency=Frequency.BATCH,
            parameter_server_mode=f"granules-{training.transport}",
            port=0,
        )
        # The library's copies of the weights, which nothing reads.
        self.weights = self.serialized_model = None
        self._task = task
        self._first = checkpoint
        self._store = STORES[training.mode](task.run, checkpoint)
        self.parameter_server.listen(self._store, bind, task.token, identity)
        self.client.configure(
            (host, self.parameter_server.port),
            task.token,
            self._store.forms,
            float(training.stall_seconds),
            task.fingerprint,
        )

    def fit(self, rdd: RDD[int], **kwargs: Any) -> None:
        """Trains, without the lines that the library prints.

        Args:
            rdd: A partition per worker, that holds its rank.
            kwargs: None are known.
        """
        self._fit(rdd, **kwargs)

    def close(self) -> None:
        """Ends the parameter server, if it has not ended."""
        self.parameter_server.stop()

    @contextmanager
    def run_parameter_server(self) -> Iterator[None]:
        """Lets the parameter server serve, and ends it after errors too."""
        self.parameter_server.start()
        try:
            yield
        finally:
            self.parameter_server.stop()

    def _fit(self, rdd: RDD[int], **kwargs: Any) -> None:
        worker = GranuleWorker(self._master_network.to_json(), self.client, self._task)
        with self.run_parameter_server():
            rdd.mapPartitions(worker.train).collect()
        trained = self._store.weights()
        self._master_network.take(replace(self._first, weights=trained).encoder_weights)
