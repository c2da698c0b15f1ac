"""Asynchronous runs: parameters on nodes of the cluster, and a worker's way to them.

The library knows parameter servers as nodes, and leaves what they do to TensorFlow, whose servers
listen at every address of a machine and do for anybody what they are asked. Here they are servers
of this run alone. Runs on executors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipelines.training.checkpoint import load_checkpoint
from pipelines.training.parameter_server.desk import ParameterServer
from pipelines.training.parameter_server.exchanges import ServedParameters
from pipelines.training.parameter_server.keepers import SharedParameters
from pipelines.training.parameter_server.lines import SocketLine
from pipelines.training.parameter_server.shards import ShardedParameters, checkpoint_shard
from pipelines.training.parameter_server.wire import forms
from pipelines.training.run import TrainingRun, WorkerTask

if TYPE_CHECKING:
    from tensorflowonspark import TFSparkNode

PAUSE_SECONDS = 0.1


def parameter_server(
    run: TrainingRun, node: TFSparkNode.TFNodeContext, token: str
) -> ParameterServer:
    """This node's share of the parameters, listening. Runs on an executor.

    Args:
        run: The run.
        node: The library's node.
        token: Of the run.

    Raises:
        OSError: The port that the library has reserved is not to be had.
    """
    checkpoint = load_checkpoint(run.run_folder, run.first_step)
    servers = run.config.training.parameter_servers
    keeper = SharedParameters(run, checkpoint_shard(checkpoint, node.task_index, servers))
    # At the port that the library still holds, which it does at every address: nobody else can
    # have taken it.
    server = ParameterServer(keeper, _address(node, node.task_index), token)
    if node.tmp_socket is not None:
        node.release_port()
    return server


def sharded_parameters(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> ShardedParameters:
    """A worker's way to all servers, once they are there. Runs on an executor.

    Raises:
        TimeoutError: One is not within ``training.start_seconds``.
    """
    run, training = task.run, task.run.config.training
    if node.tmp_socket is not None:
        # A worker serves nobody.
        node.release_port()
    checkpoint = load_checkpoint(run.run_folder, run.first_step)
    deadline = time.monotonic() + training.start_seconds
    parts = []
    for server in range(training.parameter_servers):
        held = checkpoint_shard(checkpoint, server, training.parameter_servers).weights
        line = SocketLine(
            _address(node, server),
            task.token,
            forms(training.mode, {name: value.shape for name, value in held.items()}),
            float(training.stall_seconds),
        )
        parts.append(ServedParameters(line, task))
        _await(parts[-1], line.address, deadline, training.start_seconds)
    return ShardedParameters(parts)


def _address(node: TFSparkNode.TFNodeContext, server: int) -> tuple[str, int]:
    """Where a server listens, which the library has told all nodes."""
    host, port = node.cluster_spec["ps"][server].rsplit(":", 1)
    return host, int(port)


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
