"""Batches of token ids to embeddings by TensorFlow, on the CPU. Runs on an executor."""

from __future__ import annotations

import numpy as np

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.frameworks.tensorflow import configure_threads, forward, limit_gpus
from pipelines.models.inference.batches import TokenEmbedder
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights

WIDTH_MULTIPLE = 8
"""Batches are padded to a multiple, so that a graph is compiled for few shapes."""


def open_backend(
    spec: EncoderSpec,
    weights: Weights,
    *,
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """See :func:`.embedder.token_embedder`; it computes on the CPU alone."""
    assert device == "cpu", "GPUs are for torch"
    configure_threads(threads)
    limit_gpus(device)
    tensors = {name: tf.constant(value) for name, value in weights.items()}

    def embed(token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        return forward(spec, tensors, token_ids, lengths, precision=precision)

    signature = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)]
    graph = tf.function(embed, input_signature=signature, autograph=False)

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        embeddings: np.ndarray = graph(*pad(token_ids, lengths)).numpy()
        return embeddings[: len(lengths)]

    return embed_batch


def pad(token_ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pads both ways: tokens to a multiple, and texts, with one-token ones, to a power of two."""
    texts, longest = token_ids.shape
    height = 1 << (texts - 1).bit_length()
    width = -(-longest // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
    padded_lengths = np.ones(height, np.int32)
    padded_lengths[:texts] = lengths
    return np.pad(token_ids, ((0, height - texts), (0, width - longest))), padded_lengths
