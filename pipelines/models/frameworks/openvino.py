"""Encoders in OpenVINO: the ends of the graph that architectures share, and a few nodes.

The graph is written in OpenVINO's operations. So neither PyTorch nor an exporter is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import openvino as ov
import openvino.opset13 as op

from pipelines.models.architecture import form_of
from pipelines.models.spec import EncoderSpec, Pooling
from pipelines.models.weights import Weights, dense_name

if TYPE_CHECKING:
    from pipelines.models.inference.batches import TokenEmbedder

_NORM_FLOOR = 1e-12
"""The least length that embeddings are divided by, as in PyTorch."""


class Form(Protocol):
    """An architecture's form for `openvino`: its part of the graph."""

    def __call__(
        self, spec: Any, weights: Mapping[str, np.ndarray], token_ids: Any, lengths: Any
    ) -> Any:
        """Return the node of the embeddings [batch, hidden], before dense layers."""
        ...


def encoder_graph(spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> ov.Model:
    """Return the encoder over token ids int32 [batch, tokens] and lengths int32 [batch]."""
    # Free axes: batches differ in texts and in width.
    token_ids = op.parameter([-1, -1], np.int32, name="token_ids")
    lengths = op.parameter([-1], np.int32, name="lengths")
    encode: Form = form_of(spec, "openvino")
    embeddings = encode(spec, weights, token_ids, lengths)
    for number, layer in enumerate(spec.dense):
        bias = weights[dense_name(number, "bias")] if layer.bias else np.float32(0)
        embeddings = linear(embeddings, weights[dense_name(number, "weight")], bias)
        if layer.activation == "tanh":
            embeddings = op.tanh(embeddings)
    if spec.normalise:
        embeddings = op.normalize_l2(embeddings, integer(1), _NORM_FLOOR, "max")
    return ov.Model([embeddings], [token_ids, lengths], "encoder")


def positions_of(token_ids: Any) -> Any:
    """Return the numbers of the columns, int32 [tokens], in the width at run time."""
    width = op.gather(op.shape_of(token_ids, output_type="i32"), integer(1), integer(0))
    return op.range(integer(0), width, integer(1), output_type="i32")


def mean(vectors: Any, is_token: Any, counts: Any) -> Any:
    """Return the mean of each text's vectors without its padding, [batch, hidden].

    Vectors are fp32 [batch, tokens, hidden]; ``is_token`` is fp32 [batch, tokens], 0 for padding,
    or the weights of tokens; ``counts``, [batch, 1], are the divisors.
    """
    total = op.reduce_sum(op.multiply(vectors, op.unsqueeze(is_token, integer(2))), integer(1))
    return op.divide(total, op.convert(counts, "f32"))


def pool(pooling: Pooling, vectors: Any, is_token: Any, lengths: Any) -> Any:
    """Return one vector of each text, [batch, hidden]; see :func:`mean` for the arguments."""
    return _POOLINGS[pooling](vectors, is_token, lengths)


def _mean(vectors: Any, is_token: Any, lengths: Any) -> Any:
    return mean(vectors, is_token, op.unsqueeze(lengths, integer(1)))


def _first(vectors: Any, is_token: Any, lengths: Any) -> Any:
    return op.gather(vectors, integer(0), integer(1))


def _last(vectors: Any, is_token: Any, lengths: Any) -> Any:
    return op.gather(vectors, op.subtract(lengths, integer(1)), integer(1), batch_dims=1)


def _weighted_mean(vectors: Any, is_token: Any, lengths: Any) -> Any:
    places = op.cumsum(is_token, integer(1))
    weights = op.multiply(places, is_token)
    return mean(vectors, weights, op.reduce_sum(weights, integer(1), keep_dims=True))


_POOLINGS: Mapping[Pooling, Callable[[Any, Any, Any], Any]] = {
    "mean": _mean,
    "cls": _first,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}


def linear(values: Any, weight: np.ndarray, bias: np.ndarray | np.float32) -> Any:
    """Return the product with a matrix [out, in], plus its bias [out]."""
    return op.add(op.matmul(values, op.constant(weight), False, True), op.constant(bias))


def integer(value: int) -> Any:
    """Return an int32 constant."""
    return op.constant(np.int32(value))


PRECISIONS = {"fp32": "f32", "bf16": "bf16"}


def open_backend(
    spec: EncoderSpec, weights: Weights, *, threads: int, precision: str, device: str
) -> TokenEmbedder:
    """See :func:`pipelines.models.inference.backends.token_embedder`; for the CPU only.

    With ``bf16`` the library keeps the activations between matrix products in bf16 too.
    """
    assert device == "cpu", "GPUs are for torch"
    return compiled_embedder(encoder_graph(spec, weights), threads=threads, precision=precision)


def compiled_embedder(graph: ov.Model, *, threads: int, precision: str) -> TokenEmbedder:
    """Return the function of a graph of :func:`encoder_graph`, on the CPU."""
    request = request_of(graph, threads=threads, precision=precision)

    def embed_batch(token_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        embeddings: np.ndarray = request.infer([token_ids, lengths])[0]
        return embeddings

    return embed_batch


def request_of(graph: ov.Model, *, threads: int, precision: str) -> ov.InferRequest:
    """Compile a graph for the CPU."""
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        # One request at a time: a second stream would have nothing to do.
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": PRECISIONS[precision],
    }
    return ov.Core().compile_model(graph, "CPU", settings).create_infer_request()
