"""Asynchronous runs: parameters on nodes of the cluster, and the workers' connections to them.

The library starts parameter servers as nodes, and leaves their work to TensorFlow, whose servers
listen at every address of a machine and are unauthenticated. Here they demand the token of the run.
Runs on executors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipelines.engines.tensorflowonspark.registration import node_place, own_identity
from pipelines.runs.checkpoint import load_checkpoint, load_shapes
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.parameter_server.client import SocketClient
from pipelines.training.parameter_server.connections import ParameterServer
from pipelines.training.parameter_server.messages import forms
from pipelines.training.parameter_server.remote_state import ServedParameters
from pipelines.training.parameter_server.shards import ShardedParameters, rows_of, shard_shapes
from pipelines.training.parameter_server.updates import SharedParameters

if TYPE_CHECKING:
    from tensorflowonspark import TFSparkNode

PAUSE_SECONDS = 0.1


def parameter_server(
    run: TrainingRun, node: TFSparkNode.TFNodeContext, token: str
) -> ParameterServer:
    """This node's share of the parameters, listening. Runs on an executor.

    Raises:
        OSError: It cannot listen at the port that the library has reserved.
    """
    rows = rows_of(node.task_index, run.config.training.parameter_servers)
    store = SharedParameters(run, load_checkpoint(run.run_folder, run.first_step, rows))
    # At the port that the library still holds, which it does at every address: no other process
    # can have taken it.
    server = ParameterServer(store, node_place(node.executor_id).address, token, own_identity())
    if node.tmp_socket is not None:
        node.release_port()
    return server


def sharded_parameters(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> ShardedParameters:
    """A worker's connections to all servers, once they are there. Runs on an executor.

    Raises:
        TimeoutError: One is not within ``training.start_seconds``.
    """
    run, training = task.run, task.run.config.training
    if node.tmp_socket is not None:
        # A worker does not listen.
        node.release_port()
    shapes = load_shapes(run.run_folder, run.first_step)
    deadline = time.monotonic() + training.start_seconds
    parts = []
    for server in range(training.parameter_servers):
        own = shard_shapes(shapes, server, training.parameter_servers)
        # The library numbers what it takes for parameter servers first.
        place = node_place(server)
        client = SocketClient(
            place.address,
            task.token,
            forms(training.mode, own),
            float(training.stall_seconds),
            place.fingerprint,
        )
        parts.append(ServedParameters(client, task))
        _await(parts[-1], client.address, deadline, training.start_seconds)
    return ShardedParameters(parts)


def _await(part: ServedParameters, address: tuple[str, int], deadline: float, seconds: int) -> None:
    while True:
        try:
            part.progress()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"there was no parameter server at {address[0]}:{address[1]} within"
                    f" training.start_seconds ({seconds} s)"
                ) from None
            time.sleep(PAUSE_SECONDS)
        else:
            return
