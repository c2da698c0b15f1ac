"""BERT from Megatron-Core's layers; see :class:`pipelines.engines.megatron.form.MegatronForm`.

Runs on executors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from pipelines.engines.megatron.form import (
    ColumnDivided,
    DividedWords,
    RowDivided,
    shared_input,
)
from pipelines.models.bert.spec import DIVISION, RELATIVE_BIAS, BertSpec, layer_prefix
from pipelines.models.bert.torch import (
    Heads,
    attend,
    embedded_inputs,
    first_dropout_site,
    layer_norm,
    norm_weights,
    relative_bias,
)
from pipelines.models.frameworks.torch import run_checkpointed
from pipelines.models.frameworks.torch_batch import Batch, pool
from pipelines.models.frameworks.torch_dropout import DropoutMasks, dropped
from pipelines.models.weights import WORDS, part_bounds


class MegatronBert(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """The layers of a stage, with the embeddings in the first one.

    Its `weights` are those of :class:`pipelines.engines.megatron.form.MegatronEncode`.
    """

    def __init__(
        self,
        spec: BertSpec,
        config: TransformerConfig,
        shapes: Mapping[str, Sequence[int]],
        dtype: torch.dtype,
        *,
        checkpointed: bool,
    ) -> None:
        super().__init__()
        self._spec, self._checkpointed = spec, checkpointed
        self._words = DividedWords(shapes[WORDS], config) if WORDS in shapes else None
        of_layers = {DIVISION.layer_of(name) for name in shapes}
        numbers = sorted(number for number in of_layers if number is not None)
        self.layers = torch.nn.ModuleDict(
            {str(number): _Layer(spec, config, number, shapes, dtype) for number in numbers}
        )
        self.weights: dict[str, torch.nn.Parameter] = {}
        if self._words is not None:
            self.weights[WORDS] = self._words.weight
        for layer in self.layers.values():
            self.weights |= layer.weights
        undivided = {name: shape for name, shape in shapes.items() if name not in self.weights}
        if RELATIVE_BIAS in undivided:
            # The biases of a member's heads.
            members = config.tensor_model_parallel_size
            undivided[RELATIVE_BIAS] = (spec.relative_buckets, spec.heads // members)
        self.weights |= {name: _empty(shape) for name, shape in undivided.items()}
        # A module must own its parameters, or its optimiser would not find them.
        self._undivided = torch.nn.ParameterList(self.weights[name] for name in undivided)

    def first_states(self, batch: Batch, masks: DropoutMasks | None) -> torch.Tensor:
        """Return fp32 [tokens, hidden]."""
        assert self._words is not None, "the first stage has the words"
        return embedded_inputs(self._spec, self.weights, self._words(batch.token_ids), batch, masks)

    def run_layers(
        self, states: torch.Tensor, batch: Batch, masks: DropoutMasks | None
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden]."""
        bias = relative_bias(self._spec, self.weights, batch)
        for layer in self.layers.values():
            states = run_checkpointed(
                layer, states, batch, masks, bias, checkpointed=self._checkpointed
            )
        return states

    def pooled(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return fp32 [texts, hidden]."""
        return pool(self._spec.pooling, states, batch)


class _Layer(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """One layer, equal to :func:`pipelines.models.bert.torch.BertEncoder.run_layer`.

    Its weights have canonical names, with the layer's prefix.
    """

    def __init__(
        self,
        spec: BertSpec,
        config: TransformerConfig,
        number: int,
        shapes: Mapping[str, Sequence[int]],
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._spec, self._dtype = spec, dtype
        self._prefix, self._site = layer_prefix(number), first_dropout_site(number)
        self._members = config.tensor_model_parallel_size
        self.weights: dict[str, torch.nn.Parameter] = {}

        def divided(name: str, kind: type[RowDivided] | type[ColumnDivided]) -> torch.nn.Module:
            full = f"{self._prefix}{name}"
            module = kind(shapes[f"{full}.weight"], config)
            self.weights |= {f"{full}.weight": module.weight, f"{full}.bias": module.bias}
            return module

        self.query = divided("attention.self.query", RowDivided)
        self.key = divided("attention.self.key", RowDivided)
        self.value = divided("attention.self.value", RowDivided)
        self.attention_output = divided("attention.output.dense", ColumnDivided)
        self.intermediate = divided("intermediate.dense", RowDivided)
        self.output = divided("output.dense", ColumnDivided)
        norms = {
            f"{self._prefix}{block}LayerNorm.{part}": _empty((spec.hidden,))
            for block in ("attention.output.", "output.")
            for part in ("weight", "bias")
        }
        self.weights |= norms
        self._norms = torch.nn.ParameterList(norms.values())

    def forward(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return fp32 [tokens, hidden], the same on all members, as is the input.

        `bias` is fp32 [heads of this member, width, width], or None.
        """
        attended = self.attention_output.product(self._context(states, batch, masks, bias))
        attended = dropped(masks, self._site + 1, attended)
        states = self._norm("attention.output.", states + attended)
        wide = functional.gelu(self.intermediate.product(shared_input(states, self._dtype)))
        output = dropped(masks, self._site + 2, self.output.product(wide))
        return self._norm("output.", states + output)

    def _context(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the result of this member's heads, [tokens, part of hidden]."""
        heads = self._spec.heads
        entered = shared_input(states, self._dtype)
        query = self.query.product(entered) / math.sqrt(self._spec.hidden // heads)
        qkv = torch.cat([query, self.key.product(entered), self.value.product(entered)], 1)
        first, last = part_bounds(heads, self._members, self.query.tp_group.rank())
        member_heads = Heads(heads, first, last - first)
        return attend(qkv, batch, member_heads, masks, self._site, bias)

    def _norm(self, block: str, values: torch.Tensor) -> torch.Tensor:
        return layer_norm(self._spec, values, norm_weights(self.weights, f"{self._prefix}{block}"))


def _empty(shape: Sequence[int]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(*shape))
