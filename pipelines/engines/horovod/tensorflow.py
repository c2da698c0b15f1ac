"""Collectives for TensorFlow by Horovod. Runs in ranks.

Horovod's optimiser is not used: with Keras 3 it silently averages nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pipelines.engines.horovod.ranks import HorovodCollectives
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.quiet import import_without

# Derives a layer, unused by any encoder, from one of Keras, whose import takes as long as
# TensorFlow's.
_LAYER = ModuleType("horovod.tensorflow.sync_batch_norm")
_LAYER.SyncBatchNormalization = None  # type: ignore[attr-defined]

with import_without(_LAYER.__name__, _LAYER):
    import horovod.tensorflow as hvd


class TensorFlowCollectives(HorovodCollectives):
    """See :class:`pipelines.engines.horovod.ranks.HorovodCollectives`."""

    def __init__(self, compression: str) -> None:
        super().__init__(hvd, compression)

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""
        return hvd.allgather(tf.convert_to_tensor(tensor), name="gather")

    def _mean(self, name: str, tensors: Sequence[Any], compression: Any) -> list[Any]:
        # Divided before the sum, which could exceed fp16's range.
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0) / self.workers
        mean = hvd.allreduce(flat, op=hvd.Sum, name=name, compression=compression)
        pieces = tf.split(mean, [int(tensor.shape.num_elements()) for tensor in tensors])
        return [
            tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)
        ]
