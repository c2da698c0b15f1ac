"""Elephas's Spark model and worker, with one Spark job and one parameter server for a run.

In the library's own synchronous mode every epoch is a Spark job, and all weights pass through the
driver's JVM at its end. Its worker turns a partition into one array and calls Keras's ``fit`` on
it, with a fresh optimiser each time. Here the workers of every mode live as long as the run, make
their steps by the loops of this package, and send their arrays to the parameter server. The encoder
is also a Keras model, the only kind that Elephas trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error.
with quiet_import():
    import tensorflow as tf
    from elephas.enums.frequency import Frequency
    from elephas.enums.modes import Mode
    from elephas.parameter.factory import ClientServerFactory
    from elephas.spark_model import AsynchronousSparkModel
    from elephas.worker import AsynchronousSparkWorker
    from tensorflow import keras

from pipelines.engines.elephas.servers import (
    GranuleClient,
    GranuleHttpServer,
    GranuleServer,
    GranuleSocketServer,
)
from pipelines.errors import PipelineError
from pipelines.models.frameworks.tensorflow import forward
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights, weight_shapes
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.asynchronous import train_asynchronously, train_in_rounds
from pipelines.training.control.authenticated_server import Identity
from pipelines.training.loop import Loop, run_worker
from pipelines.training.parameter_server.client import (
    Client,
    HttpClient,
    ServedParameters,
    ServedRounds,
    SocketClient,
    means_server_lost,
)
from pipelines.training.parameter_server.server import STORES

if TYPE_CHECKING:
    from pyspark import RDD

MODES = {"sync": Mode.SYNCHRONOUS, "async": Mode.ASYNCHRONOUS, "hogwild": Mode.HOGWILD}
_LOOPS: Mapping[str, tuple[Loop, Callable[[Client, WorkerTask], Any]]] = {
    "sync": (train_in_rounds, ServedRounds),
    "async": (train_asynchronously, ServedParameters),
    "hogwild": (train_asynchronously, ServedParameters),
}


class GranuleWorker(AsynchronousSparkWorker):  # type: ignore[misc] # the library has no types
    """Trains one worker's share of the run; `json` is the model in Elephas's format.

    `task` belongs to rank 0; the others differ only by rank.
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
        """Train from the first step to the last, and yield nothing; the iterator holds the rank.

        Losses and errors go to the driver's monitor.

        Raises:
            PipelineError: Spark has started a lost worker again.
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


@keras.utils.register_keras_serializable(package="sentence_pipelines")
class EncoderModel(keras.Model):  # type: ignore[misc] # TensorFlow has no types
    """Embeds token ids; its weights are the canonical ones, in canonical order."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(name="encoder")
        self.spec = spec
        for name, shape in weight_shapes(spec).items():
            self.add_weight(name=name, shape=shape, dtype="float32", initializer="zeros")

    def call(self, token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """See :func:`pipelines.models.frameworks.tensorflow.forward`."""
        values = (variable.value for variable in self.weights)
        named = dict(zip(weight_shapes(self.spec), values, strict=True))
        return forward(self.spec, named, token_ids, lengths)

    def take(self, weights: Weights) -> None:
        """Load weights by their names."""
        self.set_weights([weights[name] for name in weight_shapes(self.spec)])

    def get_config(self) -> dict[str, Any]:
        """Return the config for :meth:`from_config`."""
        return {"spec": self.spec.to_json()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EncoderModel:
        """Return a model of the same shape."""
        return cls(EncoderSpec.from_json(config["spec"]))


def encoder_model(spec: EncoderSpec, weights: Weights, training: TrainingSettings) -> EncoderModel:
    """Return a compiled model with weights; Elephas accepts no other.

    Keras does not run its optimiser: the workers have their own.
    """
    model = EncoderModel(spec)
    model.take(weights)
    model.compile(optimizer=keras.optimizers.AdamW(weight_decay=training.weight_decay))
    return model


class _GranuleFactory:
    """Makes both ends of a transport; Elephas finds its own subclasses under their type."""

    _client: type[Client]
    _server: type[GranuleServer]

    def create_client(self, port: int) -> GranuleClient:
        return GranuleClient(self._client)

    def create_server(self, *args: Any, **kwargs: Any) -> GranuleServer:
        return self._server(*args, **kwargs)


class GranuleHttpFactory(_GranuleFactory, ClientServerFactory):  # type: ignore[misc] # no types
    """The parameter server over HTTP."""

    _type = "granules-http"
    _client, _server = HttpClient, GranuleHttpServer


class GranuleSocketFactory(_GranuleFactory, ClientServerFactory):  # type: ignore[misc] # no types
    """The parameter server over sockets."""

    _type = "granules-socket"
    _client, _server = SocketClient, GranuleSocketServer


class GranuleModel(AsynchronousSparkModel):  # type: ignore[misc] # the library has no types
    """Trains a run from a checkpoint; its master network holds the result. Runs on the driver.

    It listens from the start, so :meth:`close` must be called in the end. The executors reach the
    driver by `host`; the identity encrypts their connections. `task` belongs to rank 0; the others
    differ only by rank.
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
        # Frees the library's copies of the weights; nothing reads them.
        self.weights = self.serialized_model = None
        self._task = task
        self._first = checkpoint
        self._store = STORES[training.mode](task.run, checkpoint)
        self.parameter_server.listen(self._store, bind, task.token, identity)
        self.client.connection = self.client.client_class(
            (host, self.parameter_server.port),
            task.token,
            self._store.forms,
            float(training.stall_seconds),
            task.fingerprint,
        )

    def fit(self, rdd: RDD[int], **kwargs: Any) -> None:
        """Train, without the library's printed lines.

        Each partition of `rdd` holds a worker's rank.
        """
        self._fit(rdd, **kwargs)

    def close(self) -> None:
        """End the parameter server, if it has not ended."""
        self.parameter_server.stop()

    @contextmanager
    def run_parameter_server(self) -> Iterator[None]:
        """Serve parameters inside the block, and end after errors too."""
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
