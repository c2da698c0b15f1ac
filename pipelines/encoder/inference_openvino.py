"""Batches of token ids to embeddings by OpenVINO, on the CPU. Runs on an executor.

The graph is that of :mod:`pipelines.encoder.torch`, written in OpenVINO's operations: nothing is
converted, so neither PyTorch nor an exporter is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as op

from pipelines.encoder.batches import TokenEmbedder
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import WORDS, Weights

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}
_HIDDEN_FROM_SOFTMAX = -1e9
_NORM_FLOOR = 1e-12


def open_backend(
    spec: EncoderSpec,
    weights: Weights,
    *,
    threads: int = 1,
    precision: str = "fp32",
    device: str = "cpu",
) -> TokenEmbedder:
    """See :func:`pipelines.encoder.inference.token_embedder`; it computes on the CPU alone.

    With ``bf16`` the library keeps the activations between the matrix products in bf16 too.
    """
    assert device == "cpu", "GPUs are for torch"
    compiled = ov.Core().compile_model(
        encoder_graph(spec, weights),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
        },
    )
    request = compiled.create_infer_request()

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        embeddings: np.ndarray = request.infer([token_ids, lengths])[0]
        return embeddings

    return embed_batch


def encoder_graph(spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> ov.Model:
    """The encoder over token ids int32 [batch, tokens] and lengths int32 [batch].

    Args:
        spec: The shape.
        weights: fp32, in canonical names.
    """
    token_ids = op.parameter([-1, -1], np.int32, name="token_ids")
    lengths = op.parameter([-1], np.int32, name="lengths")
    width = op.gather(op.shape_of(token_ids, output_type="i32"), _number(1), _number(0))
    places = op.range(_number(0), width, _number(1), output_type="i32")
    row, column = op.unsqueeze(places, _number(0)), op.unsqueeze(lengths, _number(1))
    words = op.gather(op.constant(weights[WORDS]), token_ids, _number(0))
    if spec.kind == "bag":
        is_inner = op.logical_and(
            op.greater(row, _number(0)), op.less(row, op.subtract(column, _number(1)))
        )
        counts = op.maximum(op.subtract(column, _number(2)), _number(1))
        embeddings = _mean(words, op.convert(is_inner, "f32"), counts)
    else:
        there = op.convert(op.less(row, column), "f32")
        stream = _token_vectors(spec, weights, words, places)
        nothing, far = op.constant(np.float32(1)), op.constant(np.float32(_HIDDEN_FROM_SOFTMAX))
        hidden_keys = op.unsqueeze(
            op.multiply(op.subtract(nothing, there), far), op.constant(np.array([1, 2], np.int32))
        )
        for number in range(spec.layers):
            stream = _layer(spec, weights, f"encoder.layer.{number}.", stream, hidden_keys)
        if spec.pooling == "cls":
            embeddings = op.gather(stream, _number(0), _number(1))
        else:
            embeddings = _mean(stream, there, column)
    if spec.normalise:
        embeddings = op.normalize_l2(embeddings, _number(1), _NORM_FLOOR, "max")
    return ov.Model([embeddings], [token_ids, lengths], "encoder")


def _token_vectors(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], words: Any, places: Any
) -> Any:
    positions = (
        weights["embeddings.position_embeddings.weight"]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    total = op.add(words, op.gather(op.constant(positions), places, _number(0)))
    return _normalised(spec, weights, "embeddings.", total)


def _layer(
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    prefix: str,
    stream: Any,
    hidden_keys: Any,
) -> Any:
    """One layer of [batch, tokens, hidden]."""

    def dense(name: str, values: Any) -> Any:
        weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return _product(values, weight, bias)

    attended = dense(
        "attention.output.dense", _attention(spec, weights, prefix, stream, hidden_keys)
    )
    stream = _normalised(spec, weights, f"{prefix}attention.output.", op.add(stream, attended))
    outer = dense("output.dense", op.gelu(dense("intermediate.dense", stream), "erf"))
    return _normalised(spec, weights, f"{prefix}output.", op.add(stream, outer))


def _attention(
    spec: EncoderSpec,
    weights: Mapping[str, np.ndarray],
    prefix: str,
    stream: Any,
    hidden_keys: Any,
) -> Any:
    """The mixed values, [batch, tokens, hidden], from one product for queries, keys and values."""
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
    shape = op.constant(np.array([0, 0, len(scales), spec.heads, size], np.int64))
    split = op.transpose(
        op.reshape(_product(stream, weight, bias), shape, special_zero=True),
        op.constant(np.array([2, 0, 3, 1, 4], np.int64)),
    )
    query, key, value = (op.gather(split, _number(n), _number(0)) for n in range(len(scales)))
    scores = op.add(op.matmul(query, key, False, True), hidden_keys)
    mixed = op.matmul(op.softmax(scores, -1), value, False, False)
    return op.reshape(
        op.transpose(mixed, op.constant(np.array([0, 2, 1, 3], np.int64))),
        op.constant(np.array([0, 0, spec.hidden], np.int64)),
        special_zero=True,
    )


def _mean(vectors: Any, there: Any, counts: Any) -> Any:
    """The mean of the vectors that are there, [batch, hidden]."""
    total = op.reduce_sum(op.multiply(vectors, op.unsqueeze(there, _number(2))), _number(1))
    return op.divide(total, op.convert(counts, "f32"))


def _product(values: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
    return op.add(op.matmul(values, op.constant(weight), False, True), op.constant(bias))


def _normalised(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], prefix: str, values: Any
) -> Any:
    last = op.constant(np.array([-1], np.int32))
    normalised = op.mvn(values, last, True, spec.layer_norm_epsilon, "inside_sqrt")
    scale, shift = (
        op.constant(weights[f"{prefix}LayerNorm.{part}"]) for part in ("weight", "bias")
    )
    return op.add(op.multiply(normalised, scale), shift)


def _number(value: int) -> Any:
    return op.constant(np.int32(value))
