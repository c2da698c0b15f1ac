"""Asynchronous runs: a worker's way to the parameters, which TensorFlow servers hold and update.

Between-graph replication: every node is a TensorFlow server, and each worker runs a graph of its
own with a session on its own server, which reaches the parameter servers and nothing else. The
gradients are computed beside it, by the worker's eager TensorFlow. Runs on executors.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from pipelines.encoder.weights import Weights
from pipelines.engines.tensorflowonspark.calls import KINDS, Calls
from pipelines.engines.tensorflowonspark.shards import Layout
from pipelines.training.asynchronous import Progress
from pipelines.training.checkpoint import Checkpoint, load_checkpoint
from pipelines.training.run import WorkerTask

if TYPE_CHECKING:
    from tensorflowonspark import TFSparkNode

READY_PAUSE_SECONDS = 0.2

# Servers cannot be stopped, and a session cannot be closed once a server that it knows is gone:
# it would wait for ever. Both end with their process.
_FOR_LIFE: list[Any] = []


def start_server(node: TFSparkNode.TFNodeContext, threads: int) -> str:
    """Starts this node's TensorFlow server. Runs on an executor.

    Returns:
        Where a session finds it.
    """
    if node.tmp_socket is not None:
        # Held until this moment, so that nobody else could take the port.
        node.release_port()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        device_count={"GPU": 0},
    )
    server = tf.distribute.Server(node.cluster_spec, node.job_name, node.task_index, config=config)
    _FOR_LIFE.append(server)
    return str(server.target)


def served_parameters(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> ServedParameters:
    """Joins the parameter servers; rank 0 gives them the checkpoint. Runs on an executor.

    Raises:
        TimeoutError: Rank 0 has not within ``training.start_seconds``.
    """
    run, training = task.run, task.run.config.training
    own = f"/job:{node.job_name}/task:{node.task_index}"
    checkpoint = load_checkpoint(run.run_folder, run.first_step)
    shapes = {name: value.shape for name, value in checkpoint.weights.items()}
    layout = Layout(shapes, training.parameter_servers)
    calls = Calls(layout.shards, task.workers, f"{own}/device:CPU:0", training.weight_decay)
    session = tf.compat.v1.Session(
        start_server(node, training.threads),
        graph=calls.graph,
        config=_session_config(own, training.parameter_servers, training.stall_seconds),
    )
    _FOR_LIFE.append(session)
    parameters = ServedParameters(task, layout, calls, session)
    if task.rank == 0:
        parameters.begin(checkpoint)
    else:
        parameters.await_begin()
    return parameters


def _session_config(own: str, servers: int, seconds: int) -> Any:
    """A session that sees the servers and its own node, and gives up a call in time."""
    # Each by its number, since spare nodes are among them and serve nothing.
    seen = [f"/job:ps/task:{number}" for number in range(servers)]
    config = tf.compat.v1.ConfigProto(
        device_filters=[*seen, own], operation_timeout_in_ms=1000 * seconds
    )
    # The graph is small and as it should be; optimising it would only delay the first calls.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


class ServedParameters:
    """See :class:`pipelines.training.asynchronous.Parameters`.

    Args:
        task: The worker's task.
        layout: Where the weights are.
        calls: What can be asked of the servers.
        session: A v1 session on the worker's own server.
    """

    def __init__(self, task: WorkerTask, layout: Layout, calls: Calls, session: Any) -> None:
        self._task = task
        self._layout = layout
        self._calls = calls
        self._session = session

    def pull(self) -> tuple[Weights, int]:
        """The weights as they are now, and how many updates they have had at least."""
        made, pieces = self._session.run(self._calls.pull)
        return self._layout.join(pieces), int(made)

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Has the servers make an update; returns how many there are with it."""
        calls = self._calls
        feed = self._fed(gradients) | {calls.step: step, calls.rate: learning_rate}
        return int(self._session.run(calls.push, feed))

    def progress(self) -> Progress:
        """How far the run is."""
        applied, saved = self._session.run(self._calls.progress)
        return Progress(applied=min(int(applied), self._task.run.last_step), saved=int(saved))

    def state(self) -> tuple[Weights, Weights]:
        """Weights, and the optimiser's arrays as a checkpoint holds them."""
        kinds = {
            kind: self._layout.join(self._session.run(self._calls.read[kind])) for kind in KINDS
        }
        moments = {f"{kind}/{name}": kinds[kind][name] for kind in "mv" for name in kinds[kind]}
        return kinds["weights"], moments

    def mark_saved(self, step: int) -> None:
        """Lets the others go on from a step whose state has been saved."""
        self._session.run(self._calls.mark_saved, {self._calls.step: step})

    def begin(self, checkpoint: Checkpoint) -> None:
        """Gives the servers the state to begin with."""
        weights, moments = checkpoint.weights, checkpoint.moments
        calls, first, workers = self._calls, self._task.run.first_step, self._task.workers
        self._session.run(calls.write["weights"], self._fed(weights))
        for kind in "mv":
            values = {
                name: moments.get(f"{kind}/{name}", np.zeros_like(value))
                for name, value in weights.items()
            }
            self._session.run(calls.write[kind], self._fed(values))
        next_steps = [first + (rank - first) % workers for rank in range(workers)]
        self._session.run(calls.begin, {calls.step: first, calls.next_steps: next_steps})

    def await_begin(self) -> None:
        """Waits until rank 0 has given the servers their state.

        Raises:
            TimeoutError: It has not within ``training.start_seconds``.
        """
        seconds = self._task.run.config.training.start_seconds
        deadline = time.monotonic() + seconds
        while not self._session.run(self._calls.is_ready):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the parameters were not there within training.start_seconds ({seconds} s)"
                )
            time.sleep(READY_PAUSE_SECONDS)

    def _fed(self, values: Mapping[str, np.ndarray]) -> dict[Any, Any]:
        return dict(zip(self._calls.pieces, self._layout.cut(values), strict=True))
