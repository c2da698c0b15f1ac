"""BERT in OpenVINO; see :class:`pipelines.models.frameworks.openvino.Form`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino.opset13 as op

from pipelines.models.bert.spec import POSITIONS, PROJECTION, SEGMENTS, BertSpec, layer_prefix
from pipelines.models.frameworks.openvino import integer, linear, pool, positions_of
from pipelines.models.weights import WORDS

_ATTENTION_MASK = -1e9
"""Added to the scores of padding: its probability becomes exactly zero."""


def encode(spec: BertSpec, weights: Mapping[str, np.ndarray], token_ids: Any, lengths: Any) -> Any:
    """Return the pooled hidden states of each text, [batch, hidden]."""
    positions = positions_of(token_ids)
    column, length = op.unsqueeze(positions, integer(0)), op.unsqueeze(lengths, integer(1))
    is_inside = op.less(column, length)
    zero, unit = op.constant(np.float32(0)), op.constant(np.float32(1))
    # Selected, not computed: the library takes a converted and scaled mask for int8 values.
    is_token = op.select(is_inside, unit, zero)
    # [batch, 1, 1, tokens]: the same for every head and every query.
    attention_bias = op.unsqueeze(
        op.select(is_inside, zero, op.constant(np.float32(_ATTENTION_MASK))),
        op.constant(np.array([1, 2], np.int32)),
    )
    hidden_states = _embedding_output(spec, weights, token_ids, positions)
    for number in range(spec.layers):
        hidden_states = _layer(spec, weights, layer_prefix(number), hidden_states, attention_bias)
    return pool(spec.pooling, hidden_states, is_token, lengths)


def _embedding_output(
    spec: BertSpec, weights: Mapping[str, np.ndarray], token_ids: Any, positions: Any
) -> Any:
    """Return [batch, tokens, hidden]: words, positions and segment, normalised."""
    words = op.gather(op.constant(weights[WORDS]), token_ids, integer(0))
    # A single sentence is all of the first segment, so its one vector is part of the table.
    segment = weights[SEGMENTS][0] if spec.type_vocabulary else np.float32(0)
    table = weights[POSITIONS]
    if spec.placeless_token is not None:
        positions = _places(spec.placeless_token, len(table), token_ids, positions)
        table = np.pad(table, ((0, 1), (0, 0)))
    table = op.constant(table + segment)
    total = op.add(words, op.gather(table, positions, integer(0)))
    states = _layer_norm(spec, weights, "embeddings.", total)
    if not spec.projects:
        return states
    return linear(states, weights[f"{PROJECTION}.weight"], weights[f"{PROJECTION}.bias"])


def _places(token: int, behind: int, token_ids: Any, positions: Any) -> Any:
    """Return position table rows, int32 [batch, tokens]; ``behind`` for the placeless token."""
    is_placeless = op.equal(op.convert(token_ids, "i32"), integer(token))
    counted = op.convert(is_placeless, "i32")
    before = op.cum_sum(counted, integer(1), exclusive=True)
    return op.select(is_placeless, integer(behind), op.subtract(positions, before))


def _layer(
    spec: BertSpec,
    weights: Mapping[str, np.ndarray],
    prefix: str,
    hidden_states: Any,
    attention_bias: Any,
) -> Any:
    """Return the output of a layer, [batch, tokens, hidden]."""

    def dense(name: str, values: Any) -> Any:
        weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return linear(values, weight, bias)

    attention_output = dense(
        "attention.output.dense", _attention(spec, weights, prefix, hidden_states, attention_bias)
    )
    # Post-norm: the norm comes behind the sum. Pre-norm weights would not fit here.
    total = op.add(hidden_states, attention_output)
    hidden_states = _layer_norm(spec, weights, f"{prefix}attention.output.", total)
    output = dense("output.dense", op.gelu(dense("intermediate.dense", hidden_states), "erf"))
    return _layer_norm(spec, weights, f"{prefix}output.", op.add(hidden_states, output))


def _attention(
    spec: BertSpec,
    weights: Mapping[str, np.ndarray],
    prefix: str,
    hidden_states: Any,
    attention_bias: Any,
) -> Any:
    """Return the values mixed by softmax of query times key, [batch, tokens, hidden].

    Queries, keys and values come from one product. Scores are divided by the root of the head's
    width: scaling the query's weights gives the same at no cost per token.
    """
    size = spec.hidden // spec.heads
    scales = {"query": 1 / math.sqrt(size), "key": 1.0, "value": 1.0}
    weight, bias = (
        np.concatenate(
            [
                weights[f"{prefix}attention.self.{name}.{part}"] * np.float32(scale)
                for name, scale in scales.items()
            ]
        )
        for part in ("weight", "bias")
    )
    # With `special_zero`, a 0 keeps the length of an axis.
    shape = op.constant(np.array([0, 0, len(scales), spec.heads, size], np.int64))
    split = op.transpose(
        op.reshape(linear(hidden_states, weight, bias), shape, special_zero=True),
        op.constant(np.array([2, 0, 3, 1, 4], np.int64)),
    )
    query, key, value = (op.gather(split, integer(n), integer(0)) for n in range(len(scales)))
    scores = op.add(op.matmul(query, key, False, True), attention_bias)
    context = op.matmul(op.softmax(scores, -1), value, False, False)
    return op.reshape(
        op.transpose(context, op.constant(np.array([0, 2, 1, 3], np.int64))),
        op.constant(np.array([0, 0, spec.hidden], np.int64)),
        special_zero=True,
    )


def _layer_norm(spec: BertSpec, weights: Mapping[str, np.ndarray], prefix: str, values: Any) -> Any:
    last = op.constant(np.array([-1], np.int32))
    normalised = op.mvn(values, last, True, spec.layer_norm_epsilon, "inside_sqrt")
    scale, shift = (
        op.constant(weights[f"{prefix}LayerNorm.{part}"]) for part in ("weight", "bias")
    )
    return op.add(op.multiply(normalised, scale), shift)
