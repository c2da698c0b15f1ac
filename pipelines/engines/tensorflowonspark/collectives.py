"""Synchronous runs: what the workers of a step exchange. Runs on executors.

TensorFlow's own strategies start its server, which listens at every address of a machine and reads
and writes files for anybody. Here the workers form a ring that only they can join.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.engines.tensorflowonspark.registration import node_place, own_identity
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives, SingleProcess
from pipelines.training.collectives.ring import BROKEN, Ring

if TYPE_CHECKING:
    from tensorflowonspark import TFSparkNode


def ring_collectives(
    task: WorkerTask, node: TFSparkNode.TFNodeContext, afterwards: ExitStack
) -> Collectives:
    """Joins the ring of the workers. Runs on an executor.

    Args:
        afterwards: Has the worker leave the ring.

    Raises:
        TimeoutError: Not all workers are there within ``training.start_seconds``.
        OSError: It cannot listen at the port that the library has reserved, or reach the others.
        PipelineError: Another process is where the next worker should be.
    """
    if task.workers == 1:
        if node.tmp_socket is not None:
            node.release_port()
        return SingleProcess()
    # The library numbers nodes that are no workers first.
    first = node.executor_id - task.rank
    places = [node_place(first + rank) for rank in range(task.workers)]
    # At the port that the library still holds, so that no other process can have taken it.
    ring = Ring(
        task.rank,
        [place.address for place in places],
        task.token,
        own_identity(),
        places[(task.rank + 1) % task.workers].fingerprint,
    )
    afterwards.enter_context(ring)
    if node.tmp_socket is not None:
        node.release_port()
    training = task.run.config.training
    # Until all are ready, one may still read its checkpoint while the others wait for it in the
    # first step; the driver's monitor counts training.stall_seconds from then on.
    wait_seconds = max(training.start_seconds, training.stall_seconds)
    ring.join(float(training.start_seconds), float(wait_seconds))
    return RingCollectives(ring)


def means_peer_lost(error: Exception) -> bool:
    """Whether the ring broke: its own error, or TensorFlow's for it."""
    return isinstance(error, OSError | tf.errors.OpError) and BROKEN in str(error)


class RingCollectives:
    """TensorFlow's tensors in a ring; see :class:`pipelines.training.collectives.base.Collectives`.

    Args:
        ring: Has been joined.
    """

    def __init__(self, ring: Ring) -> None:
        self.rank = ring.rank
        self.workers = ring.workers
        self._ring = ring

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; called while a graph is traced.

        All tensors travel as one, since each operation waits for the slowest worker.
        """
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        mean = tf.numpy_function(self._ring.sum, [flat], flat.dtype) / float(self.workers)
        mean.set_shape(flat.shape)
        pieces = tf.split(mean, [int(tensor.shape.num_elements()) for tensor in tensors])
        return [
            tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    def all_gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks."""
        return tf.convert_to_tensor(self._ring.gather(np.asarray(tensor)))

    def reduce_scatter(self, tensor: Any) -> Any:
        """The sum of the workers' tensors, of which each worker gets its own part of the rows.

        Args:
            tensor: [workers x rows, ...]; of the sum the first rows are rank 0's, and so on.
        """
        return tf.convert_to_tensor(self._ring.reduce_scatter(np.asarray(tensor)))
