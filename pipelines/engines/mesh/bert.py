"""BERT in Mesh TensorFlow; see :class:`pipelines.engines.mesh.form.Form`.

Heads, the wide layer and the vocabulary are divided along the mesh's axis of members. Each member
has some of the heads and a part of both matrices behind them, as in :mod:`.spec`. The library
infers the sums over members from the dimensions that a product drops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipelines.engines.mesh.form import (
    HEADS,
    HIDDEN,
    VOCABULARY,
    WIDE,
    Form,
    Shape,
    Side,
    locally,
    look_up,
)
from pipelines.engines.mesh.library import mtf
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.models.bert.spec import POSITIONS, PROJECTION, SEGMENTS, BertSpec, layer_prefix
from pipelines.models.weights import WORDS

_ATTENTION_MASK = -1e9
"""Added to the scores of padding: their probabilities are then exactly zero."""
_MEMORY = "memory"
"""The tokens attended to; the attending ones are another dimension."""


class _Dimensions:
    """The dimensions of an encoder's weights."""

    def __init__(self, spec: BertSpec) -> None:
        self.hidden = mtf.Dimension(HIDDEN, spec.hidden)
        self.words = mtf.Dimension("word_width", spec.word_width) if spec.projects else self.hidden
        self.heads = mtf.Dimension(HEADS, spec.heads)
        self.head = mtf.Dimension("head", spec.hidden // spec.heads)
        self.wide = mtf.Dimension(WIDE, spec.intermediate)
        self.vocabulary = mtf.Dimension(VOCABULARY, spec.vocabulary)
        self.positions = mtf.Dimension("positions", spec.positions)
        self.segments = mtf.Dimension("segments", spec.type_vocabulary)


def shapes(spec: BertSpec) -> Mapping[str, Shape]:
    """Return the dimensions of each weight."""
    dimensions = _Dimensions(spec)
    found: dict[str, Shape] = {
        WORDS: [dimensions.vocabulary, dimensions.words],
        POSITIONS: [dimensions.positions, dimensions.words],
        "embeddings.LayerNorm.weight": [dimensions.words],
        "embeddings.LayerNorm.bias": [dimensions.words],
    }
    if spec.type_vocabulary:
        found[SEGMENTS] = [dimensions.segments, dimensions.words]
    if spec.projects:
        found |= {
            f"{PROJECTION}.weight": [dimensions.hidden, dimensions.words],
            f"{PROJECTION}.bias": [dimensions.hidden],
        }
    for layer in range(spec.layers):
        found |= _layer_shapes(dimensions, layer_prefix(layer))
    return found


def _layer_shapes(dimensions: _Dimensions, prefix: str) -> dict[str, Shape]:
    matrices: dict[str, tuple[Shape, Shape]] = {
        "attention.self.query": ([dimensions.heads, dimensions.head], [dimensions.hidden]),
        "attention.self.key": ([dimensions.heads, dimensions.head], [dimensions.hidden]),
        "attention.self.value": ([dimensions.heads, dimensions.head], [dimensions.hidden]),
        "attention.output.dense": ([dimensions.hidden], [dimensions.heads, dimensions.head]),
        "intermediate.dense": ([dimensions.wide], [dimensions.hidden]),
        "output.dense": ([dimensions.hidden], [dimensions.wide]),
    }
    found: dict[str, Shape] = {}
    for name, (rows, columns) in matrices.items():
        found |= {f"{prefix}{name}.weight": [*rows, *columns], f"{prefix}{name}.bias": rows}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        found |= {
            f"{prefix}{name}.weight": [dimensions.hidden],
            f"{prefix}{name}.bias": [dimensions.hidden],
        }
    return found


def encode(spec: BertSpec, weights: Mapping[str, Any], side: Side) -> Any:
    """Run one forward pass; return fp32 [replica, examples, hidden]."""
    return _Pass(spec, weights, side).embeddings()


class _Pass:
    """One forward pass, and the state that its parts share."""

    def __init__(self, spec: BertSpec, weights: Mapping[str, Any], side: Side) -> None:
        self._spec = spec
        self._dimensions = _Dimensions(spec)
        self._weights = weights
        self._side = side
        *self._texts, self._tokens = side.token_ids.shape
        self._memory = mtf.Dimension(_MEMORY, self._tokens.size)
        padding = (1.0 - side.is_token) * _ATTENTION_MASK
        self._attention_bias = mtf.rename_dimension(padding, self._tokens.name, _MEMORY)

    def embeddings(self) -> Any:
        """Return fp32 [replica, examples, hidden]."""
        hidden_states = self._side.dropout(self._embedding_output())
        if self._spec.projects:
            hidden_states = self._dense(PROJECTION, hidden_states, [self._dimensions.hidden])
        for number in range(self._spec.layers):
            hidden_states = self._layer(layer_prefix(number), hidden_states)
        shape = [*self._texts, self._dimensions.hidden]
        return mtf.einsum([hidden_states, self._side.pooled], output_shape=shape)

    def _embedding_output(self) -> Any:
        """Return the normalised sum of words, positions and segment."""
        words = look_up(self._weights[WORDS], self._side.token_ids)
        table = self._weights[POSITIONS]
        positions = mtf.slice(table, 0, self._tokens.size, self._dimensions.positions.name)
        positions = mtf.rename_dimension(
            positions, self._dimensions.positions.name, self._tokens.name
        )
        if self._spec.type_vocabulary:
            # All tokens of a single sentence have the first segment.
            first = mtf.slice(self._weights[SEGMENTS], 0, 1, self._dimensions.segments.name)
            positions += mtf.reshape(first, [self._dimensions.words])
        return self._normalise("embeddings.", words + positions)

    def _layer(self, prefix: str, hidden_states: Any) -> Any:
        """Apply attention, then the feed-forward block, each with a residual connection."""
        dimensions, dropout = self._dimensions, self._side.dropout
        context = self._attention(prefix, hidden_states)
        output = dropout(
            self._dense(f"{prefix}attention.output.dense", context, [dimensions.hidden])
        )
        # Post-norm: the norm comes after the sum. Pre-norm weights would not fit.
        hidden_states = self._normalise(f"{prefix}attention.output.", hidden_states + output)
        wide = self._dense(f"{prefix}intermediate.dense", hidden_states, [dimensions.wide])
        # GELU works on single numbers, so the wide layer may be divided.
        wide = locally(_gelu, wide, undivided=None)
        output = dropout(self._dense(f"{prefix}output.dense", wide, [dimensions.hidden]))
        return self._normalise(f"{prefix}output.", hidden_states + output)

    def _attention(self, prefix: str, hidden_states: Any) -> Any:
        """Return the values mixed by softmax of query times key, [..., tokens, heads, head]."""
        dimensions = self._dimensions
        seen = mtf.rename_dimension(hidden_states, self._tokens.name, _MEMORY)
        by_head = [dimensions.heads, dimensions.head]
        query = self._dense(f"{prefix}attention.self.query", hidden_states, by_head)
        key, value = (
            self._dense(f"{prefix}attention.self.{name}", seen, by_head)
            for name in ("key", "value")
        )
        shape = [*self._texts, dimensions.heads, self._tokens, self._memory]
        scores = mtf.einsum(
            [query * (1 / math.sqrt(dimensions.head.size)), key], output_shape=shape
        )
        probs = locally(tf.nn.softmax, scores + self._attention_bias, undivided=self._memory)
        # BERT drops probabilities, not scores: the text then misses a token.
        probs = self._side.dropout(probs, attention=True)
        shape = [*self._texts, self._tokens, *by_head]
        return mtf.einsum([probs, value], output_shape=shape)

    def _dense(self, name: str, values: Any, after: Shape) -> Any:
        matrix = self._weights[f"{name}.weight"]
        kept = [dimension for dimension in values.shape if dimension not in matrix.shape.dims]
        product = mtf.einsum([values, matrix], output_shape=[*kept, *after])
        return product + self._weights[f"{name}.bias"]

    def _normalise(self, prefix: str, values: Any) -> Any:
        """Apply layer norm over the last dimension."""

        def standard(slices: tf.Tensor) -> tf.Tensor:
            centred = slices - tf.reduce_mean(slices, axis=-1, keepdims=True)
            variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
            return centred * tf.math.rsqrt(variance + self._spec.layer_norm_epsilon)

        scale, shift = (self._weights[f"{prefix}LayerNorm.{name}"] for name in ("weight", "bias"))
        return locally(standard, values, undivided=values.shape[-1]) * scale + shift


def _gelu(values: tf.Tensor) -> tf.Tensor:
    return tf.nn.gelu(values, approximate=False)


FORM = Form(shapes=shapes, encode=encode)
