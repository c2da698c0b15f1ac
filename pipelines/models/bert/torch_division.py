"""BERT in PyTorch, divided between workers: heads, the wide layer and the rows of words.

See :class:`pipelines.models.frameworks.torch_division.DividedEncode`. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.torch import (
    Layer,
    embedded_inputs,
    first_dropout_site,
    layer_norm,
    layer_weights,
    relative_bias,
)
from pipelines.models.bert.torch_attention import Heads, attend
from pipelines.models.division import part_bounds
from pipelines.models.frameworks.torch_batch import Batch, pool
from pipelines.models.frameworks.torch_division import Members, Part
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropped
from pipelines.models.frameworks.torch_linear import linear
from pipelines.models.weights import WORDS


class DividedBert:
    """Forward passes of a stage of BERT.

    Args:
        spec: The shape of the whole.
        weights: fp32 on one device, this worker's parts, in canonical names.
        dtype: Of the matrix products.
        part: Which these are.
    """

    def __init__(
        self,
        spec: BertSpec,
        weights: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        part: Part,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._members = part.members
        self._layers = {n: layer_weights(spec, weights, n, dtype) for n in part.layers}

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [texts, hidden]."""
        states = self.first_states(batch, masks, sparse_words=sparse_words)
        states = self.run_layers(
            states, batch, masks, activation_checkpointing=activation_checkpointing
        )
        return self.pooled(states, batch)

    def first_states(
        self, batch: Batch, masks: DropoutMasks | None, *, sparse_words: bool = False
    ) -> torch.Tensor:
        """fp32 [tokens, hidden]."""
        return first_states(
            self._spec, self._weights, self._members, batch, masks, sparse_words=sparse_words
        )

    def run_layers(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """fp32 [tokens, hidden]."""
        bias = relative_bias(self._spec, self._weights, batch)
        for number, layer in self._layers.items():
            site = first_dropout_site(number)
            inputs = (self._spec, layer, self._members, states, batch, masks, site, bias)
            if activation_checkpointing:
                states = checkpoint(
                    run_layer, *inputs, use_reentrant=False, preserve_rng_state=False
                )
            else:
                states = run_layer(*inputs)
        return states

    def pooled(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """fp32 [texts, hidden]."""
        return pool(self._spec.pooling, states, batch)


def first_states(
    spec: BertSpec,
    weights: Mapping[str, torch.Tensor],
    members: Members,
    batch: Batch,
    masks: DropoutMasks | None,
    *,
    sparse_words: bool = False,
) -> torch.Tensor:
    """What the first layer takes; see :func:`pipelines.models.bert.torch.embedding_output`.

    Returns:
        fp32 [tokens, hidden], the same on all members.
    """
    words = members.look_up(weights[WORDS], batch.token_ids, spec.vocabulary, sparse=sparse_words)
    return embedded_inputs(spec, weights, words, batch, masks)


def run_layer(
    spec: BertSpec,
    layer: Layer,
    members: Members,
    states: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """One layer; see :func:`pipelines.models.bert.torch.run_layer`.

    Args:
        spec: The encoder's shape.
        layer: This member's part of the layer's weights.
        members: That hold the layer.
        states: fp32 [tokens, hidden], the same on all of them.
        batch: The texts.
        masks: Of dropout; None without.
        site: Number of the layer's first place of dropout.
        bias: fp32 [heads of this member, width, width], or None.

    Returns:
        fp32 [tokens, hidden], the same on all of them.
    """
    context = _attend(spec, layer, members, states, batch, masks, site, bias)
    # A bias is added once, behind the sum.
    attended = members.add_up(linear(context, layer.attention_output.weight))
    attended = dropped(masks, site + 1, attended + layer.attention_output.bias)
    states = layer_norm(spec, states + attended, layer.attention_norm)
    entered = members.enter(states).to(layer.intermediate.weight.dtype)
    wide = functional.gelu(linear(entered, *layer.intermediate))
    output = members.add_up(linear(wide, layer.output.weight)) + layer.output.bias
    return layer_norm(spec, states + dropped(masks, site + 2, output), layer.output_norm)


def _attend(
    spec: BertSpec,
    layer: Layer,
    members: Members,
    states: torch.Tensor,
    batch: Batch,
    masks: DropoutMasks | None,
    site: int,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The context [tokens, part of hidden] of this member's heads."""
    qkv = linear(members.enter(states).to(layer.qkv.weight.dtype), *layer.qkv)
    first, last = part_bounds(spec.heads, members.size, members.member)
    return attend(qkv, batch, Heads.between(spec.heads, first, last), masks, site, bias)
