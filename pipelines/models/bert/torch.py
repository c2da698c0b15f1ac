"""BERT in PyTorch; see :class:`pipelines.models.frameworks.torch.Form`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.bert.relative_positions import relative_buckets
from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.torch_attention import Heads, attend
from pipelines.models.bert.weights import (
    POSITIONS,
    PROJECTION,
    RELATIVE_BIAS,
    SEGMENTS,
    layer_prefix,
)
from pipelines.models.frameworks.torch_batch import Batch, pool, to_device
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropped
from pipelines.models.frameworks.torch_linear import linear
from pipelines.models.weights import WORDS

_SITES_PER_LAYER = 3
"""Where a layer drops: attention's probabilities, and what is added to either residual."""


class Dense(NamedTuple):
    """A matrix [out, in] and its bias [out], or the scale and shift of a layer norm."""

    weight: torch.Tensor
    bias: torch.Tensor


class Layer(NamedTuple):
    """The weights of a layer, as its matrix products take them; the norms are fp32.

    Attributes:
        qkv: Query, scaled by the root of the head's width, key and value as one.
        attention_output: Of the context.
        attention_norm: Behind the first residual.
        intermediate: Into the wide part of the feed-forward block.
        output: And back.
        output_norm: Behind the second residual.
    """

    qkv: Dense
    attention_output: Dense
    attention_norm: Dense
    intermediate: Dense
    output: Dense
    output_norm: Dense


class BertEncoder:
    """Forward passes of BERT; see :class:`pipelines.models.frameworks.torch.Encode`.

    The casts are written out, since ``torch.autocast`` looks at the type of every operation, casts
    activations that need no cast, and on a CPU also changes which operations are fp32.

    Args:
        spec: The shape.
        weights: fp32 on one device, in canonical names.
        dtype: Of the matrix products.
    """

    def __init__(
        self, spec: BertSpec, weights: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._layers = [layer_weights(spec, weights, n, dtype) for n in range(spec.layers)]

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [texts, hidden]."""
        hidden_states = self.hidden_states(
            batch,
            masks,
            activation_checkpointing=activation_checkpointing,
            sparse_words=sparse_words,
        )
        return self.pooled(hidden_states, batch)

    def hidden_states(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [tokens, hidden]."""
        hidden_states = embedding_output(
            self._spec, self._weights, batch, masks, sparse_words=sparse_words
        )
        bias = relative_bias(self._spec, self._weights, batch)
        for number, layer in enumerate(self._layers):
            site = first_dropout_site(number)
            inputs = (self._spec, layer, hidden_states, batch, masks, site, bias)
            if activation_checkpointing:
                # The masks come from seeds of their own, so torch's generators need not be kept.
                hidden_states = checkpoint(
                    run_layer, *inputs, use_reentrant=False, preserve_rng_state=False
                )
            else:
                hidden_states = run_layer(*inputs)
        return hidden_states

    def pooled(self, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """fp32 [texts, hidden]."""
        return pool(self._spec.pooling, hidden_states, batch)


def layer_weights(
    spec: BertSpec, weights: Mapping[str, torch.Tensor], number: int, dtype: torch.dtype
) -> Layer:
    """The weights of a layer, cast, with query, key and value as one matrix.

    One product of three times the width is faster than three, and reads the hidden states once.
    """
    prefix = layer_prefix(number)
    # Scores are divided by the root of the head's width. Scaling the query's weights gives the
    # same, and costs nothing for each token.
    scale = 1 / math.sqrt(spec.hidden // spec.heads)

    def qkv(part: str) -> torch.Tensor:
        query, key, value = (
            weights[f"{prefix}attention.self.{name}.{part}"] for name in ("query", "key", "value")
        )
        return torch.cat([query * scale, key, value]).to(dtype)

    def dense(name: str) -> Dense:
        weight, bias = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
        return Dense(weight.to(dtype), bias.to(dtype))

    return Layer(
        qkv=Dense(qkv("weight"), qkv("bias")),
        attention_output=dense("attention.output.dense"),
        attention_norm=norm_weights(weights, f"{prefix}attention.output."),
        intermediate=dense("intermediate.dense"),
        output=dense("output.dense"),
        output_norm=norm_weights(weights, f"{prefix}output."),
    )


def embedding_output(
    spec: BertSpec,
    weights: Mapping[str, torch.Tensor],
    batch: Batch,
    masks: DropoutMasks | None,
    *,
    sparse_words: bool = False,
) -> torch.Tensor:
    """fp32 [tokens, hidden], as layers take them: words, positions and segment, normalised."""
    words = functional.embedding(batch.token_ids, weights[WORDS], sparse=sparse_words)
    return embedded_inputs(spec, weights, words, batch, masks)


def embedded_inputs(
    spec: BertSpec,
    weights: Mapping[str, torch.Tensor],
    words: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
) -> torch.Tensor:
    """The same of any vectors in the place of words, fp32 [tokens, width of words]."""
    positions, places = weights[POSITIONS][: batch.width], batch.positions
    if spec.placeless_token is not None:
        places = _places(spec.placeless_token, batch)
        positions = functional.pad(positions, (0, 0, 0, 1))
    if spec.type_vocabulary:
        # A single sentence is all of the first segment: its one vector is added to the few
        # positions, and not to every token.
        positions = positions + weights[SEGMENTS][0]
    total = words + functional.embedding(places, positions)
    states = dropped(masks, 0, layer_norm(spec, total, norm_weights(weights, "embeddings.")))
    if not spec.projects:
        return states
    return linear(states, weights[f"{PROJECTION}.weight"], weights[f"{PROJECTION}.bias"])


def _places(token: int, batch: Batch) -> torch.Tensor:
    """Rows of the position table, int64 [tokens]; the one behind its last for a token."""
    is_placeless = batch.token_ids == token
    before = is_placeless.cumsum(0) - is_placeless.long()
    firsts = torch.arange(len(before), device=before.device) - batch.positions
    places = batch.positions - (before - before[firsts])
    return torch.where(is_placeless, batch.width, places)


def relative_bias(
    spec: BertSpec, weights: Mapping[str, torch.Tensor], batch: Batch
) -> torch.Tensor | None:
    """What attention adds to scores by how far a key is from its query, if it does.

    Returns:
        fp32 [heads, width, width], or None.
    """
    if not spec.relative_buckets:
        return None
    buckets = relative_buckets(spec.relative_buckets, batch.width)
    table = functional.embedding(to_device(buckets, batch.token_ids.device), weights[RELATIVE_BIAS])
    return table.permute(2, 0, 1).contiguous()


def first_dropout_site(layer: int) -> int:
    """Number of the first place of dropout in a layer; place 0 is before the first layer."""
    return 1 + _SITES_PER_LAYER * layer


def run_layer(
    spec: BertSpec,
    layer: Layer,
    hidden_states: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """One layer: attention, then the feed-forward block, each added to what it came from.

    Hidden states and layer norms are fp32 also where matrix products are bf16: rounding would add
    up over the layers, and a norm's mean and variance are sums over the whole width.

    Args:
        spec: The encoder's shape.
        layer: The layer's weights.
        hidden_states: fp32 [tokens, hidden].
        batch: The texts.
        masks: Of dropout; None without.
        site: Number of the layer's first place of dropout.
        bias: Of :func:`relative_bias`.

    Returns:
        fp32 [tokens, hidden].
    """
    hidden_states = run_attention(spec, layer, hidden_states, batch, masks, site, bias)
    return run_feed_forward(spec, layer, hidden_states, masks, site + 2)


def run_attention(
    spec: BertSpec,
    layer: Layer,
    hidden_states: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The first half of :func:`run_layer`."""
    dtype = layer.qkv.weight.dtype
    qkv = linear(hidden_states.to(dtype), *layer.qkv)
    # BERT drops probabilities and not scores: a text then misses a token, as with a word left out.
    context = attend(qkv, batch, Heads.all_of(spec.heads), masks, site, bias)
    attention_output = linear(context, *layer.attention_output)
    attention_output = dropped(masks, site + 1, attention_output)
    # Post-norm: the norm comes behind the sum. Pre-norm weights would not fit here.
    return layer_norm(spec, hidden_states + attention_output, layer.attention_norm)


def run_feed_forward(
    spec: BertSpec,
    layer: Layer,
    hidden_states: torch.Tensor,
    masks: DropoutMasks | None,
    site: int,
) -> torch.Tensor:
    """The second half of :func:`run_layer`, with its one place of dropout."""
    dtype = layer.intermediate.weight.dtype
    # Exact GELU, by erf: checkpoints were trained with it, and the tanh form is off by up to 5e-4.
    intermediate = functional.gelu(linear(hidden_states.to(dtype), *layer.intermediate))
    output = dropped(masks, site, linear(intermediate, *layer.output))
    return layer_norm(spec, hidden_states + output, layer.output_norm)


def norm_weights(weights: Mapping[str, torch.Tensor], prefix: str) -> Dense:
    """Those of the layer norm in a block."""
    return Dense(weights[f"{prefix}LayerNorm.weight"], weights[f"{prefix}LayerNorm.bias"])


def layer_norm(spec: BertSpec, values: torch.Tensor, norm: Dense) -> torch.Tensor:
    """Values [..., width] with mean 0 and variance 1 each, scaled and shifted."""
    return functional.layer_norm(values, norm.weight.shape, *norm, spec.layer_norm_epsilon)
