"""The encoder in PyTorch: a pure function over weights in canonical names.

Any engine can put its own leaves in: plain tensors, a module's parameters, gathered shards. All
that it does is seen by autograd, so their gradients come as those of any module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.torch_kernels import Batch, Noise, attention_form
from pipelines.encoder.weights import WORDS

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_NOISY_PLACES = 3
"""Places of dropout in a layer."""


def configure_threads(threads: int) -> None:
    """Gives PyTorch so many threads in this process.

    Numbers that are too small for fp32's full precision become zero: the moments of words that
    have not been seen for long pass through them, and CPUs are slow there.
    """
    # Threads take this over from the one that starts them, so it comes first.
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)


class Dense(NamedTuple):
    """A matrix [out, in] and its bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor


class Layer(NamedTuple):
    """The weights of a layer, as its matrix products take them; the norms are fp32.

    Attributes:
        joined: Query, scaled by the root of the head's width, key and value as one.
        attention: Behind attention.
        attention_norm: Scale and shift.
        inner: Into the wide part.
        outer: And back.
        norm: Scale and shift.
    """

    joined: Dense
    attention: Dense
    attention_norm: Dense
    inner: Dense
    outer: Dense
    norm: Dense


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Weights that are ready for forward passes; see :func:`ready`.

    Attributes:
        spec: The shape.
        weights: fp32, in canonical names.
        layers: As the matrix products take them.
        type: Of the matrix products.
    """

    spec: EncoderSpec
    weights: Mapping[str, torch.Tensor]
    layers: Sequence[Layer]
    type: torch.dtype


def ready(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], precision: str = "fp32"
) -> Encoder:
    """Casts and joins weights, once for the several forward passes of a granule.

    The casts are written out, since ``torch.autocast`` looks at the type of every operation, casts
    activations that need no cast, and on a CPU also changes which operations are fp32.

    Args:
        spec: The shape.
        weights: fp32 on one device, in canonical names.
        precision: ``fp32`` or ``bf16``, of the matrix products.
    """
    kind = PRECISIONS[precision]
    layers = [
        layer_weights(spec, weights, f"encoder.layer.{number}.", kind)
        for number in range(spec.layers)
    ]
    return Encoder(spec=spec, weights=weights, layers=layers, type=kind)


def layer_weights(
    spec: EncoderSpec, weights: Mapping[str, torch.Tensor], prefix: str, kind: torch.dtype
) -> Layer:
    """The weights of the layer whose names begin with ``prefix``."""
    scale = 1 / math.sqrt(spec.hidden // spec.heads)

    def joined(part: str) -> torch.Tensor:
        query, key, value = (
            weights[f"{prefix}attention.self.{name}.{part}"] for name in ("query", "key", "value")
        )
        return torch.cat([query * scale, key, value]).to(kind)

    def dense(name: str) -> Dense:
        weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return Dense(weight.to(kind), bias.to(kind))

    return Layer(
        joined=Dense(joined("weight"), joined("bias")),
        attention=dense("attention.output.dense"),
        attention_norm=_norm_weights(weights, f"{prefix}attention.output."),
        inner=dense("intermediate.dense"),
        outer=dense("output.dense"),
        norm=_norm_weights(weights, f"{prefix}output."),
    )


def forward(
    spec: EncoderSpec,
    weights: Mapping[str, torch.Tensor],
    token_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    precision: str = "fp32",
    dropout: float = 0.0,
    seed: Sequence[int] | None = None,
) -> torch.Tensor:
    """Embeds sentences; :func:`ready`, then :func:`embed`. Runs on an executor.

    Matrix products are in ``precision``; layer norms, softmax, GELU, pooling and the residual
    stream are fp32 in both, and so is all of a bag. What stands in the padding has no influence
    on the result.

    Args:
        spec: The shape.
        weights: fp32 on one device, in canonical names.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        precision: ``fp32`` or ``bf16``.
        dropout: Share of activations that is dropped, at the places where BERT drops them; of a
            bag, share of the values of its token vectors.
        seed: Two numbers; the noise follows from them alone. Needed with dropout.

    Returns:
        fp32 [batch, hidden], on the device of the weights.
    """
    return embed(ready(spec, weights, precision), token_ids, lengths, dropout=dropout, seed=seed)


def embed(
    encoder: Encoder,
    token_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    dropout: float = 0.0,
    seed: Sequence[int] | None = None,
    activation_checkpointing: bool = False,
    sparse_words: bool = False,
) -> torch.Tensor:
    """Embeds sentences; see :func:`forward`.

    Args:
        encoder: The weights.
        token_ids: int32 [batch, tokens], padded with any valid id.
        lengths: int32 [batch], tokens of each sentence, at least 1.
        dropout: Share of activations that is dropped.
        seed: Two numbers that the noise follows from.
        activation_checkpointing: Keeps the input of each layer only, and computes the layer once
            more for its gradient; with the same noise, as that follows from the seed.
        sparse_words: Makes the gradient of the word embeddings a sparse tensor.
    """
    if dropout and seed is None:
        raise ValueError("dropout needs a seed")
    words = encoder.weights[WORDS]
    batch = Batch.of(token_ids, lengths, words.device)
    noise = Noise(dropout, seed, words.device) if dropout and seed is not None else None
    stream = token_vectors(encoder.spec, encoder.weights, batch, noise, sparse_words=sparse_words)
    for number, layer in enumerate(encoder.layers):
        inputs = (encoder.spec, layer, stream, batch, noise, first_place(number))
        if activation_checkpointing:
            stream = checkpoint(run_layer, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            stream = run_layer(*inputs)
    return pool(encoder.spec, stream, batch)


def run_layer(
    spec: EncoderSpec,
    layer: Layer,
    stream: torch.Tensor,
    batch: Batch,
    noise: Noise | None,
    first_place: int,
) -> torch.Tensor:
    """One layer.

    Args:
        spec: The encoder's shape.
        layer: The layer's weights.
        stream: fp32 [tokens, hidden].
        batch: The texts.
        noise: Of dropout; None without.
        first_place: Number of the layer's first place of dropout.

    Returns:
        fp32 [tokens, hidden].
    """
    kind = layer.joined.weight.dtype
    joined = functional.linear(stream.to(kind), *layer.joined)
    scores = (batch.texts, spec.heads, batch.width, batch.width)
    mask = None if noise is None else noise.mask(first_place, scores)
    attend = attention_form(batch.width, stream.device, noisy=noise is not None)
    attended = functional.linear(attend(joined, batch, spec.heads, mask), *layer.attention)
    attended = _drop(noise, first_place + 1, attended)
    stream = _normalise(spec, stream + attended, layer.attention_norm)

    inner = functional.gelu(functional.linear(stream.to(kind), *layer.inner))
    outer = _drop(noise, first_place + 2, functional.linear(inner, *layer.outer))
    return _normalise(spec, stream + outer, layer.norm)


def first_place(layer: int) -> int:
    """Number of the first place of dropout in a layer; place 0 is before the first layer."""
    return 1 + _NOISY_PLACES * layer


def token_vectors(
    spec: EncoderSpec,
    weights: Mapping[str, torch.Tensor],
    batch: Batch,
    noise: Noise | None,
    *,
    sparse_words: bool = False,
) -> torch.Tensor:
    """fp32 [tokens, hidden], as layers take them: words, positions and segment, normalised.

    Those of a bag are its words.
    """
    words = functional.embedding(batch.token_ids, weights[WORDS], sparse=sparse_words)
    if spec.kind == "bag":
        return _drop(noise, 0, words)
    positions = weights["embeddings.position_embeddings.weight"][: batch.width]
    places = positions + weights["embeddings.token_type_embeddings.weight"][0]
    total = words + functional.embedding(batch.positions, places)
    return _drop(noise, 0, _normalise(spec, total, _norm_weights(weights, "embeddings.")))


def _norm_weights(weights: Mapping[str, torch.Tensor], prefix: str) -> Dense:
    return Dense(weights[f"{prefix}LayerNorm.weight"], weights[f"{prefix}LayerNorm.bias"])


def _normalise(spec: EncoderSpec, values: torch.Tensor, norm: Dense) -> torch.Tensor:
    return functional.layer_norm(values, (spec.hidden,), *norm, spec.layer_norm_epsilon)


def _drop(noise: Noise | None, place: int, values: torch.Tensor) -> torch.Tensor:
    return values if noise is None else values * noise.mask(place, values.shape)


def pool(spec: EncoderSpec, stream: torch.Tensor, batch: Batch) -> torch.Tensor:
    """fp32 [texts, hidden]: an embedding of each text."""
    if spec.kind == "bag":
        ends = torch.cat([batch.firsts, batch.firsts + batch.lengths.long() - 1])
        total = batch.rectangle(stream.index_fill(0, ends, 0.0)).sum(1)
        embeddings = total / (batch.lengths[:, None] - 2).clamp(min=1)
    elif spec.pooling == "cls":
        embeddings = stream.index_select(0, batch.firsts)
    else:
        embeddings = batch.rectangle(stream).sum(1) / batch.lengths[:, None]
    return functional.normalize(embeddings, dim=-1) if spec.normalise else embeddings
