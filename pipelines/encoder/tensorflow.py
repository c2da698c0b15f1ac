"""The encoder in TensorFlow: a pure function over weights in canonical names.

It keeps to tokens x width matrices, so that every product with a weight is one plain ``matmul``,
and works the same under a gradient tape, in a distribution strategy and in a version 1 graph.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import tensorflow as tf

from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.tensorflow_kernels import add_and_normalise, add_bias, bias_gelu
from pipelines.encoder.weights import WORDS

logger = logging.getLogger(__name__)

_PRECISIONS = {"fp32": tf.float32, "bf16": tf.bfloat16}
_HIDDEN_FROM_SOFTMAX = -1e9
"""Added to the score of padding, whose probability then is exactly zero."""


def configure_threads(threads: int) -> None:
    """Gives TensorFlow so many threads in this process.

    To be called before TensorFlow computes: after that the number stays what it is, which is
    logged if it is another.
    """
    threading = tf.config.threading
    numbers = (
        threading.get_intra_op_parallelism_threads(),
        threading.get_inter_op_parallelism_threads(),
    )
    if numbers == (threads, threads):
        return
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        logger.warning("TensorFlow has begun with %s threads, not %d", numbers, threads)


def forward(
    spec: EncoderSpec,
    weights: Mapping[str, tf.Tensor],
    token_ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    precision: str = "fp32",
    dropout: float = 0.0,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Embeds sentences. To be called inside a ``tf.function``; runs on an executor.

    Matrix products are in ``precision``; layer norms, softmax, GELU, pooling and the residual
    stream are fp32 in both, and so is all of a bag. What stands in the padding has no influence
    on the result.

    Args:
        spec: The shape.
        weights: Variables or tensors, fp32, in canonical names.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        precision: ``fp32`` or ``bf16``.
        dropout: Share of activations that is dropped, at the places where BERT drops them; of a
            bag, share of the values of its token vectors.
        seed: int32 [2]; the noise follows from it alone. Needed with dropout.

    Returns:
        fp32 [batch, hidden].
    """
    return _Pass(spec, weights, precision, dropout, seed).embed(token_ids, lengths)


class _Pass:
    """One forward pass: what its parts share, and the count of its places of dropout."""

    def __init__(
        self,
        spec: EncoderSpec,
        weights: Mapping[str, tf.Tensor],
        precision: str,
        dropout: float,
        seed: tf.Tensor | None,
    ) -> None:
        if dropout and seed is None:
            raise ValueError("dropout needs a seed")
        self._spec = spec
        self._weights = weights
        self._type = _PRECISIONS[precision]
        self._dropout = dropout
        self._seed = seed
        self._places = 0

    def embed(self, token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        if self._spec.kind == "bag":
            return self._embed_bag(token_ids, lengths)
        batch, width = tf.unstack(tf.shape(token_ids))
        present = tf.sequence_mask(lengths, width, dtype=tf.float32)
        hidden_keys = ((1.0 - present) * _HIDDEN_FROM_SOFTMAX)[:, None, None, :]
        stream = self._drop(self._token_vectors(token_ids, batch, width))
        for layer in range(self._spec.layers):
            stream = self._layer(f"encoder.layer.{layer}.", stream, batch, width, hidden_keys)
        vectors = tf.reshape(stream, [batch, width, self._spec.hidden])
        return self._pool(vectors, present, lengths)

    def _token_vectors(self, token_ids: tf.Tensor, batch: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
        """[batch * tokens, hidden]: words, positions and segment, normalised."""
        words = tf.gather(self._weights[WORDS], tf.reshape(token_ids, [-1]))
        positions = tf.gather(
            self._weights["embeddings.position_embeddings.weight"], tf.range(width)
        )
        segment = tf.gather(self._weights["embeddings.token_type_embeddings.weight"], 0)
        places = tf.broadcast_to(positions + segment, [batch, width, self._spec.hidden])
        return self._normalise("embeddings.", words, tf.reshape(places, [-1, self._spec.hidden]))

    def _layer(
        self,
        prefix: str,
        stream: tf.Tensor,
        batch: tf.Tensor,
        width: tf.Tensor,
        hidden_keys: tf.Tensor,
    ) -> tf.Tensor:
        spec = self._spec
        heads = [batch, width, spec.heads, spec.hidden // spec.heads]

        source = tf.cast(stream, self._type)
        query, key, value = (
            tf.transpose(
                tf.reshape(self._dense(f"{prefix}attention.self.{name}", source), heads),
                [0, 2, 1, 3],
            )
            for name in ("query", "key", "value")
        )
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        shares = tf.nn.softmax(scores * (1 / math.sqrt(heads[-1])) + hidden_keys)
        mixed = tf.matmul(tf.cast(self._drop(shares), self._type), value)
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, spec.hidden])
        attended = self._drop(self._dense(f"{prefix}attention.output.dense", mixed))
        stream = self._normalise(f"{prefix}attention.output.", stream, attended)

        inner = self._multiply(f"{prefix}intermediate.dense", tf.cast(stream, self._type))
        inner = bias_gelu(inner, self._weights[f"{prefix}intermediate.dense.bias"])
        outer = self._drop(self._dense(f"{prefix}output.dense", inner))
        return self._normalise(f"{prefix}output.", stream, outer)

    def _multiply(self, name: str, values: tf.Tensor) -> tf.Tensor:
        matrix = tf.cast(self._weights[f"{name}.weight"], self._type)
        return tf.matmul(values, matrix, transpose_b=True)

    def _dense(self, name: str, values: tf.Tensor) -> tf.Tensor:
        return add_bias(self._multiply(name, values), self._weights[f"{name}.bias"])

    def _normalise(self, prefix: str, residual: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        return add_and_normalise(
            residual,
            branch,
            self._weights[f"{prefix}LayerNorm.weight"],
            self._weights[f"{prefix}LayerNorm.bias"],
            self._spec.layer_norm_epsilon,
        )

    def _pool(self, vectors: tf.Tensor, present: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        if self._spec.pooling == "cls":
            embeddings = vectors[:, 0]
        else:
            total = tf.reduce_sum(vectors * present[:, :, None], axis=1)
            embeddings = total / tf.cast(lengths, tf.float32)[:, None]
        return self._unit_length(embeddings)

    def _embed_bag(self, token_ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """The mean of what is between the first and the last token; zeros if nothing is."""
        inner, counts = token_ids[:, 1:-1], tf.maximum(lengths - 2, 0)
        present = tf.sequence_mask(counts, tf.shape(inner)[1], dtype=tf.float32)
        vectors = self._drop(tf.gather(self._weights[WORDS], inner))
        total = tf.reduce_sum(vectors * present[:, :, None], axis=1)
        return self._unit_length(total / tf.cast(tf.maximum(counts, 1), tf.float32)[:, None])

    def _unit_length(self, embeddings: tf.Tensor) -> tf.Tensor:
        return tf.math.l2_normalize(embeddings, axis=-1) if self._spec.normalise else embeddings

    def _drop(self, values: tf.Tensor) -> tf.Tensor:
        """Dropout with noise from the seed and the number of the place alone."""
        if not self._dropout:
            return values
        self._places += 1
        # A named algorithm, since the automatic choice depends on the device.
        seed = tf.random.fold_in(self._seed, self._places, alg="philox")
        return tf.nn.experimental.stateless_dropout(
            values, self._dropout, seed=seed, rng_alg="philox"
        )
