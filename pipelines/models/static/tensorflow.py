"""Static embeddings in TensorFlow; see :class:`pipelines.models.frameworks.tensorflow.Form`."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.frameworks.tensorflow import Dropout, mean
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS


def encode(
    spec: StaticSpec,
    weights: Mapping[str, tf.Tensor],
    token_ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    dtype: tf.DType,
    dropout: Dropout,
) -> tf.Tensor:
    """Return the mean between the first and the last token; zeros if nothing is there.

    There are no matrix products, so all of it is fp32. Dropout acts on the token vectors.
    """
    # Every text begins with [CLS], so one slice leaves it out. [SEP] is at a different place in
    # each: the count leaves that one out.
    inner, counts = token_ids[:, 1:-1], tf.maximum(lengths - 2, 0)
    is_token = tf.sequence_mask(counts, tf.shape(inner)[1], dtype=tf.float32)
    vectors = dropout(tf.gather(weights[WORDS], inner))
    return mean(vectors, is_token, tf.maximum(counts, 1))
