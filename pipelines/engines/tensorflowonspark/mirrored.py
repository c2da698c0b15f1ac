"""Synchronous runs: MultiWorkerMirroredStrategy between the workers. Runs on executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from pipelines.training.run import WorkerTask

if TYPE_CHECKING:
    from tensorflowonspark import TFSparkNode


def mirrored_exchange(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> MirroredExchange:
    """Starts this node's TensorFlow server and joins the others. Runs on an executor."""
    if node.tmp_socket is not None:
        # Held until this moment, so that nobody else could take the port.
        node.release_port()
    implementation = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.AUTO,
        timeout_seconds=float(task.run.config.training.stall_seconds),
    )
    # Not by TF_CONFIG, which names the spare nodes too, and those have no server.
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(
            {name: hosts for name, hosts in node.cluster_spec.items() if name != "ps"}
        ),
        task_type=node.job_name,
        task_id=node.task_index,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    return MirroredExchange(strategy, task.rank)


class MirroredExchange:
    """Collective operations of the strategy; see :class:`pipelines.training.exchange.Exchange`.

    Variables are plain ones that every worker holds: they start equal and receive equal
    updates. All tensors of a mean travel as one, since each collective operation has a price.
    """

    def __init__(self, strategy: Any, rank: int) -> None:
        self.rank = rank
        self.workers = strategy.num_replicas_in_sync
        self._strategy = strategy
        self._gather = tf.function(self._gather_in_graph, autograph=False, reduce_retracing=True)

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; called while a graph is traced."""
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)

        def reduce() -> Any:
            # identity places the tensor on the replica's device, which the library asks for.
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(flat))

        total = self._strategy.run(reduce) / float(self.workers)
        pieces = tf.split(total, [int(tensor.shape.num_elements()) for tensor in tensors])
        return [
            tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    def gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks."""
        return self._gather(tensor)

    def _gather_in_graph(self, tensor: Any) -> Any:
        def gather() -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(tensor), axis=0)

        return self._strategy.run(gather)
