"""BERT in TensorFlow; see :class:`pipelines.models.frameworks.tensorflow.Form`.

Only attention needs the rectangle of texts x width. Matrix products, norms and activations take the
tokens alone, text after text, and one or a few rows in place of all padding. So every product
with a weight is one plain ``matmul``. The rows that move between the two layouts are contiguous, so
a move is one ``gather``, and so is its gradient. TensorFlow's gradient of a gather, and its
``transpose``, go number by number.

On a CPU thread the matrix products are near their best; the rest is memory traffic. So each
element-wise part is one compiled pass forward and one back, with its gradient written out. Sums
over tokens are products with a row of ones, several times as fast as a reduction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.bert.spec import POSITIONS, PROJECTION, SEGMENTS, BertSpec, layer_prefix
from pipelines.models.frameworks.tensorflow import Dropout, pool
from pipelines.models.weights import WORDS

Function = Callable[..., Any]


def _compiled(function: Function) -> Function:
    compiled: Function = tf.function(function, jit_compile=True, autograph=False)
    return compiled


def _with_gradient(function: Function) -> Function:
    """Turn a function that returns its value and its gradient function into one operation."""
    operation: Function = tf.custom_gradient(function)
    return operation


def add_bias(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Add a bias, fp32 [width], to each row of [tokens, width]."""
    return _add_bias(values, tf.convert_to_tensor(bias))


def bias_gelu(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return the exact (erf) GELU of ``values + bias``, computed in fp32.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, arXiv:1606.08415.
    """
    return _bias_gelu(values, tf.convert_to_tensor(bias))


def add_and_normalise(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Return the layer norm of ``residual + branch``, computed in fp32.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """
    return _add_and_normalise(
        residual, branch, tf.convert_to_tensor(scale), tf.convert_to_tensor(shift), epsilon
    )


def _sum_rows(values: tf.Tensor) -> tf.Tensor:
    """Return the sum over the tokens, fp32 [width]."""
    ones = tf.ones([1, tf.shape(values)[0]], values.dtype)
    return tf.cast(tf.reshape(tf.matmul(ones, values), [values.shape[-1]]), tf.float32)


@_with_gradient
def _add_bias(values: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Function]:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return upstream, _sum_rows(upstream)

    return values + tf.cast(bias, values.dtype), gradient


@_with_gradient
def _bias_gelu(values: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Function]:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        downstream = _gelu_backward(values, bias, upstream)
        return downstream, _sum_rows(downstream)

    return _gelu_forward(values, bias), gradient


def _normal_distribution(values: tf.Tensor) -> tf.Tensor:
    return 0.5 + 0.5 * tf.math.erf(values * math.sqrt(0.5))


@_compiled
def _gelu_forward(values: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    x = tf.cast(values, tf.float32) + bias
    return tf.cast(x * _normal_distribution(x), values.dtype)


@_compiled
def _gelu_backward(values: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    x = tf.cast(values, tf.float32) + bias
    # The derivative of x times the normal distribution is that distribution plus x times its
    # density. Neither is kept from the way forward: they cost less than walking over memory.
    density = tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
    slope = _normal_distribution(x) + x * density
    return tf.cast(tf.cast(upstream, tf.float32) * slope, values.dtype)


@_with_gradient
def _add_and_normalise(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, Function]:
    values, standard, inverse_deviation = _norm_forward(residual, branch, scale, shift, epsilon)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        downstream, scaled = _norm_backward(standard, inverse_deviation, scale, upstream)
        into_branch = tf.cast(downstream, branch.dtype)
        return downstream, into_branch, _sum_rows(scaled), _sum_rows(upstream), None

    return values, gradient


def _mean(values: tf.Tensor) -> tf.Tensor:
    """Return the mean over the width, in two stages: the compiler vectorises the long one."""
    width = values.shape[-1]
    lanes = math.gcd(width, 16)
    partial = tf.reduce_sum(tf.reshape(values, [-1, width // lanes, lanes]), 1)
    return tf.reduce_sum(partial, 1, keepdims=True) / width


@_compiled
def _norm_forward(
    residual: tf.Tensor, branch: tf.Tensor, scale: tf.Tensor, shift: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    total = residual + tf.cast(branch, tf.float32)
    centred = total - _mean(total)
    inverse_deviation = tf.math.rsqrt(_mean(tf.square(centred)) + epsilon)
    standard = centred * inverse_deviation
    return standard * scale + shift, standard, inverse_deviation


@_compiled
def _norm_backward(
    standard: tf.Tensor, inverse_deviation: tf.Tensor, scale: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    # Mean and variance depend on every value of a row, so a gradient that shifts or stretches the
    # whole row changes nothing: both parts are taken out of it.
    scaled = upstream * scale
    downstream = scaled - _mean(scaled) - standard * _mean(scaled * standard)
    return downstream * inverse_deviation, upstream * standard


_SIZES_PER_OCTAVE = 8
"""Numbers of rows between two powers of two. Each number compiles its own kernels, in some 0.3 s
for MiniLM in bf16; twice as many would save 2 % of the rows."""
_LEAST_STEP = 16


class Packing:
    """The places of a batch's tokens in the rectangle and among the rows.

    The gradients of padding must be zero: it has no part in the loss. Lengths are int32 [texts].
    ``places`` is int32 [rows], the slot of each row in the rectangle.
    """

    def __init__(self, lengths: tf.Tensor, texts: tf.Tensor, width: tf.Tensor) -> None:
        self._texts, self._width = texts, width
        is_token = tf.reshape(tf.sequence_mask(lengths, width), [-1])
        as_number = tf.cast(is_token, tf.int32)
        tokens = tf.reduce_sum(lengths)
        # All slots if there is no padding; else one row at least is left for it.
        self._rows = tf.minimum(_rounded(tokens + 1), texts * width)
        padding = tf.fill([self._rows - tokens], tf.argmin(as_number, output_type=tf.int32))
        of_tokens = tf.cast(tf.reshape(tf.where(is_token), [-1]), tf.int32)
        self.places = tf.concat([of_tokens, padding], 0)
        self._sources = tf.where(is_token, tf.cumsum(as_number) - 1, tokens)

    @property
    def positions(self) -> tf.Tensor:
        """The position of each row in its text, int32 [rows]."""
        return self.places % self._width

    def rectangle(self, values: tf.Tensor) -> tf.Tensor:
        """Return [rows, size] as [texts, width, size]."""
        slots = _moved(values, self._sources, self.places)
        return tf.reshape(slots, [self._texts, self._width, values.shape[-1]])

    def heads(self, parts: int, heads: int) -> Heads:
        """Return the moves between rows and the rectangles of attention's heads.

        ``parts`` are a head's values in a row: 3 for query, key and value, or 1 for one of them.
        """
        part = tf.range(parts)
        head = tf.range(heads)
        rows = tf.reshape(self._sources, [1, self._texts, 1, self._width]) * (parts * heads)
        to_heads = rows + part[:, None, None, None] * heads + head[None, None, :, None]
        text, place = self.places // self._width, self.positions
        rectangles = (part[None, :, None] * self._texts + text[:, None, None]) * heads + head
        to_rows = rectangles * self._width + place[:, None, None]
        shape = [parts, self._texts, heads, self._width]
        return Heads(tf.reshape(to_heads, [-1]), tf.reshape(to_rows, [-1]), shape)


class Heads:
    """Moves between rows [rows, parts x heads x size] and [parts, texts, heads, width, size].

    ``to_heads`` is int32 [parts x texts x heads x width], the source of each among the rows;
    ``to_rows``, int32 [rows x parts x heads], is the inverse. ``shape`` is parts, texts, heads and
    width.
    """

    def __init__(self, to_heads: tf.Tensor, to_rows: tf.Tensor, shape: list[Any]) -> None:
        self._to_heads, self._to_rows, self._shape = to_heads, to_rows, shape

    def split(self, rows: tf.Tensor) -> tf.Tensor:
        """Move rows to heads."""
        size = rows.shape[-1] // (self._shape[0] * self._shape[2])
        moved = _moved(tf.reshape(rows, [-1, size]), self._to_heads, self._to_rows)
        return tf.reshape(moved, [*self._shape, size])

    def joined(self, split: tf.Tensor) -> tf.Tensor:
        """Move heads to rows."""
        size = split.shape[-1]
        moved = _moved(tf.reshape(split, [-1, size]), self._to_rows, self._to_heads)
        return tf.reshape(moved, [-1, self._shape[0] * self._shape[2] * size])


def _rounded(count: tf.Tensor) -> tf.Tensor:
    """Round a count up, so that few different numbers result."""
    octave = tf.floor(tf.math.log(tf.cast(count, tf.float32)) / tf.math.log(2.0))
    step = tf.maximum(tf.cast(tf.pow(2.0, octave), tf.int32) // _SIZES_PER_OCTAVE, _LEAST_STEP)
    return (count + step - 1) // step * step


@_with_gradient
def _moved(values: tf.Tensor, sources: tf.Tensor, inverse: tf.Tensor) -> tuple[tf.Tensor, Function]:
    """Return rows of ``values`` by number; ``inverse`` has the numbers for the gradient."""

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        return tf.gather(upstream, inverse), None, None

    return tf.gather(values, sources), gradient


_ATTENTION_MASK = -1e9
"""Added to the scores of padding: its probability becomes exactly zero."""


def encode(
    spec: BertSpec,
    weights: Mapping[str, tf.Tensor],
    token_ids: tf.Tensor,
    lengths: tf.Tensor,
    *,
    dtype: tf.DType,
    dropout: Dropout,
) -> tf.Tensor:
    """Return fp32 [batch, hidden]."""
    return _Pass(spec, weights, dtype, dropout, token_ids, lengths).embeddings()


class _Pass:
    """A forward pass, and the state that its parts share; see :class:`.Form` for the arguments."""

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
        """Return fp32 [batch, hidden]."""
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
        """Return [rows, width of words]: words, positions and segment, normalised."""
        token_ids = tf.gather(tf.reshape(self._token_ids, [-1]), self._packing.places)
        words = tf.gather(self._weights[WORDS], token_ids)
        positions = tf.convert_to_tensor(self._weights[POSITIONS])
        if self._spec.placeless_token is not None:
            positions = tf.pad(positions, [[0, 1], [0, 0]])
        if self._spec.type_vocabulary:
            # A single sentence is all of the first segment: its one vector is added to the
            # positions, and not to every token.
            positions += tf.gather(self._weights[SEGMENTS], 0)
        addends = tf.gather(positions, self._places(token_ids))
        return self._add_and_normalise("embeddings.", words, addends)

    def _places(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Return position table rows, int32 [rows]; the row after the last for placeless ones."""
        token = self._spec.placeless_token
        if token is None:
            return self._packing.positions
        is_placeless = tf.cast(tf.equal(self._token_ids, token), tf.int32)
        before = tf.cumsum(is_placeless, axis=1, exclusive=True)
        skipped = tf.gather(tf.reshape(before, [-1]), self._packing.places)
        places = self._packing.positions - skipped
        return tf.where(tf.equal(token_ids, token), self._spec.positions, places)

    def _layer(self, prefix: str, hidden_states: tf.Tensor) -> tf.Tensor:
        """Run attention, then the feed-forward block, each with a residual.

        Hidden states and layer norms are fp32 even with bf16 matrix products: rounding would
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
        """Return the values mixed by softmax of query times key, [rows, hidden]."""
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
        """Return query, key and value as one: one product reads the hidden states once.

        Scores are divided by the root of the head's width. Scaling the query's weights gives the
        same at no cost per token.
        """
        query, key, value = (
            tf.convert_to_tensor(self._weights[f"{prefix}attention.self.{name}.{part}"])
            for name in ("query", "key", "value")
        )
        scale = 1 / math.sqrt(self._spec.hidden // self._spec.heads)
        return tf.concat([tf.cast(array, dtype) for array in (query * scale, key, value)], 0)

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
