"""Asynchronous runs: parameters on nodes of the cluster, and a worker's way to them.

The library knows parameter servers as nodes, and leaves what they do to TensorFlow, whose servers
listen at every address of a machine and do for anybody what they are asked. Here they are servers
of this run alone. Runs on executors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pipelines.engines.tensorflowonspark.registration import node_address
from pipelines.training.checkpoint import load_checkpoint, load_spec
from pipelines.training.parameter_server.desk import ParameterServer
from pipelines.training.parameter_server.exchanges import ServedParameters
from pipelines.training.parameter_server.keepers import SharedParameters
from pipelines.training.parameter_server.lines import SocketLine
from pipelines.training.parameter_server.shards import ShardedParameters, rows_of, shard_shapes
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
        OSError: It cannot listen at the port that the library has reserved.
    """
    rows = rows_of(node.task_index, run.config.training.parameter_servers)
    keeper = SharedParameters(run, load_checkpoint(run.run_folder, run.first_step, rows))
    # At the port that the library still holds, which it does at every address: nobody else can
    # have taken it.
    server = ParameterServer(keeper, node_address(node.executor_id), token)
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
    spec = load_spec(run.run_folder, run.first_step)
    deadline = time.monotonic() + training.start_seconds
    parts = []
    for server in range(training.parameter_servers):
        shapes = shard_shapes(spec, server, training.parameter_servers)
        line = SocketLine(
            # The library numbers what it takes for parameter servers first.
            node_address(server),
            task.token,
            forms(training.mode, shapes),
            float(training.stall_seconds),
        )
        parts.append(ServedParameters(line, task))
        _await(parts[-1], line.address, deadline, training.start_seconds)
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
