"""BERT in TensorFlow; see :class:`pipelines.models.frameworks.tensorflow.Form`.

It keeps to tokens x width matrices without padding, so that every product with a weight is one
plain ``matmul`` over what counts; see :mod:`.tensorflow_packing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.tensorflow_kernels import add_and_normalise, add_bias, bias_gelu
from pipelines.models.bert.tensorflow_packing import Packing
from pipelines.models.bert.weights import POSITIONS, PROJECTION, SEGMENTS, layer_prefix
from pipelines.models.frameworks.tensorflow import Dropout, pool
from pipelines.models.weights import WORDS

_ATTENTION_MASK = -1e9
"""Added to the score of padding, whose probability then is exactly zero."""


def encode(
    spec: BertSpec,
    weights: Mapping[str, tf.Tensor],
    token_ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    dtype: tf.DType,
    dropout: Dropout,
) -> tf.Tensor:
    """One forward pass; fp32 [batch, hidden]."""
    return _Pass(spec, weights, dtype, dropout, token_ids, lengths).embeddings()


class _Pass:
    """One forward pass, and what its parts share.

    Args:
        spec: The shape.
        weights: In canonical names.
        dtype: Of the matrix products.
        dropout: Drops at each place in turn.
        token_ids: int32 [batch, width].
        lengths: int32 [batch].
    """

    def __init__(
        self,
        spec: BertSpec,
        weights: Mapping[str, tf.Tensor],
        dtype: tf.DType,
        dropout: Dropout,
        token_ids: tf.Tensor,
        lengths: tf.Tensor,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._dtype = dtype
        self._dropout = dropout
        self._token_ids = token_ids
        self._lengths = lengths
        # Neither is known when a graph is traced: batches of a run differ in both.
        texts, self._width = tf.unstack(tf.shape(token_ids))
        self._packing = Packing(lengths, texts, self._width)
        self._joined, self._context = (self._packing.heads(n, spec.heads) for n in (3, 1))
        self._is_token = tf.sequence_mask(lengths, self._width, dtype=tf.float32)
        # [texts, 1, 1, width]: the same for every head and every query.
        self._attention_bias = ((1.0 - self._is_token) * _ATTENTION_MASK)[:, None, None, :]

    def embeddings(self) -> tf.Tensor:
        """fp32 [batch, hidden]."""
        hidden_states = self._dropout(self._embedding_output())
        if self._spec.projects:
            # fp32 as what is before and behind it.
            matrix = self._weights[f"{PROJECTION}.weight"]
            hidden_states = tf.matmul(hidden_states, matrix, transpose_b=True)
            hidden_states += self._weights[f"{PROJECTION}.bias"]
        for number in range(self._spec.layers):
            hidden_states = self._layer(layer_prefix(number), hidden_states)
        vectors = self._packing.rectangle(hidden_states)
        return pool(self._spec.pooling, vectors, self._is_token, self._lengths)

    def _embedding_output(self) -> tf.Tensor:
        """[rows, width of words]: words, positions and segment, normalised."""
        token_ids = tf.gather(tf.reshape(self._token_ids, [-1]), self._packing.places)
        words = tf.gather(self._weights[WORDS], token_ids)
        positions = tf.convert_to_tensor(self._weights[POSITIONS])
        if self._spec.placeless_token is not None:
            positions = tf.pad(positions, [[0, 1], [0, 0]])
        if self._spec.type_vocabulary:
            # A single sentence is all of the first segment: its one vector is added to the
            # positions, and not to every token.
            positions += tf.gather(self._weights[SEGMENTS], 0)
        own = tf.gather(positions, self._places(token_ids))
        return self._add_and_normalise("embeddings.", words, own)

    def _places(self, token_ids: tf.Tensor) -> tf.Tensor:
        """int32 [rows], rows of the position table; the one behind its last for a token."""
        token = self._spec.placeless_token
        if token is None:
            return self._packing.positions
        is_placeless = tf.cast(tf.equal(self._token_ids, token), tf.int32)
        before = tf.cumsum(is_placeless, axis=1, exclusive=True)
        own = tf.gather(tf.reshape(before, [-1]), self._packing.places)
        places = self._packing.positions - own
        return tf.where(tf.equal(token_ids, token), self._spec.positions, places)

    def _layer(self, prefix: str, hidden_states: tf.Tensor) -> tf.Tensor:
        """Attention, then the feed-forward block, each added to what it came from.

        Hidden states and layer norms are fp32 also where matrix products are bf16: rounding would
        add up over the layers, and a norm's mean and variance are sums over the whole width.
        """
        context = self._attention(prefix, tf.cast(hidden_states, self._dtype))
        attention_output = self._dropout(self._dense(f"{prefix}attention.output.dense", context))
        # Post-norm: the norm comes behind the sum. Pre-norm weights would not fit here.
        hidden_states = self._add_and_normalise(
            f"{prefix}attention.output.", hidden_states, attention_output
        )
        # The bias goes with the activation, which saves a walk over the widest matrix of all.
        name = f"{prefix}intermediate.dense"
        intermediate = bias_gelu(
            self._multiply(name, tf.cast(hidden_states, self._dtype)), self._weights[f"{name}.bias"]
        )
        output = self._dropout(self._dense(f"{prefix}output.dense", intermediate))
        return self._add_and_normalise(f"{prefix}output.", hidden_states, output)

    def _attention(self, prefix: str, hidden_states: tf.Tensor) -> tf.Tensor:
        """The values mixed by softmax of query times key, [rows, hidden]."""
        qkv = add_bias(
            tf.matmul(hidden_states, self._qkv(prefix, "weight", self._dtype), transpose_b=True),
            self._qkv(prefix, "bias", tf.float32),
        )
        query, key, value = tf.unstack(self._joined.split(qkv), num=3)
        # Softmax is fp32: bf16 has too few digits for a sum over many tokens.
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        probs = tf.nn.softmax(scores + self._attention_bias)
        # BERT drops probabilities and not scores: a text then misses a token.
        context = tf.matmul(tf.cast(self._dropout(probs, attention=True), self._dtype), value)
        return self._context.joined(context)

    def _qkv(self, prefix: str, part: str, dtype: tf.DType) -> tf.Tensor:
        """Those of query, key and value as one: one product reads the hidden states once.

        Scores are divided by the root of the head's width. Scaling the query's weights gives the
        same, and costs nothing for each token.
        """
        query, key, value = (
            tf.convert_to_tensor(self._weights[f"{prefix}attention.self.{name}.{part}"])
            for name in ("query", "key", "value")
        )
        scale = 1 / math.sqrt(self._spec.hidden // self._spec.heads)
        return tf.concat([tf.cast(one, dtype) for one in (query * scale, key, value)], 0)

    def _multiply(self, name: str, values: tf.Tensor) -> tf.Tensor:
        matrix = tf.cast(self._weights[f"{name}.weight"], self._dtype)
        return tf.matmul(values, matrix, transpose_b=True)

    def _dense(self, name: str, values: tf.Tensor) -> tf.Tensor:
        return add_bias(self._multiply(name, values), self._weights[f"{name}.bias"])

    def _add_and_normalise(self, prefix: str, residual: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
        return add_and_normalise(
            residual,
            branch,
            self._weights[f"{prefix}LayerNorm.weight"],
            self._weights[f"{prefix}LayerNorm.bias"],
            self._spec.layer_norm_epsilon,
        )
