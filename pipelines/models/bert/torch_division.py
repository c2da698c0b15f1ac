"""BERT in PyTorch, divided between workers: heads, the wide layer and the rows of words.

See :class:`pipelines.models.frameworks.torch_division.DividedEncode`. Runs on executors.

BERT in PyTorch as modules: the embeddings and each layer are gathered on their own.

What is gathered is the whole, or one member's part where several workers hold the encoder together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipelines.models.architecture import Shapes
from pipelines.models.bert.spec import DIVISION, BertSpec, layer_prefix, weight_shapes
from pipelines.models.bert.torch import (
    Heads,
    Layer,
    attend,
    embedded_inputs,
    first_dropout_site,
    layer_norm,
    layer_weights,
    relative_bias,
)
from pipelines.models.bert.torch import run_layer as run_whole_layer
from pipelines.models.frameworks.torch import PRECISIONS, Batch, DropoutMasks, dropped, linear, pool
from pipelines.models.frameworks.torch_division import EncoderModule, Inputs, Members, Part, Unit
from pipelines.models.weights import WORDS, part_bounds, part_shape
from pipelines.settings import TrainingSettings


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


ALONE = Members()
"""Of a worker that holds all of the encoder."""


class EmbeddingUnit(Unit):
    """What is before the first layer, and what all layers share.

    Args:
        spec: The encoder's shape.
        shapes: Of the weights that belong to no layer.
        members: That hold the encoder together.
    """

    def __init__(self, spec: BertSpec, shapes: Shapes, members: Members) -> None:
        super().__init__(shapes)
        self._spec = spec
        self._members = members

    def forward(
        self, sides: Sequence[Inputs]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """fp32 [tokens, hidden] of each side, and what attention adds to its scores."""
        weights = self.weights
        states = [
            first_states(self._spec, weights, self._members, side.batch, side.masks)
            for side in sides
        ]
        return states, [relative_bias(self._spec, weights, side.batch) for side in sides]


class LayerUnit(Unit):
    """A layer.

    Args:
        spec: The encoder's shape.
        shapes: Of the layer's weights.
        number: Of the layer.
        training: Precision of the matrix products, and whether activations are checkpointed.
        members: That hold the encoder together.
    """

    def __init__(
        self,
        spec: BertSpec,
        shapes: Shapes,
        number: int,
        training: TrainingSettings,
        members: Members,
    ) -> None:
        super().__init__(shapes)
        self._spec = spec
        self._number = number
        self._members = members
        self._dtype = PRECISIONS[training.precision]
        self._checkpointed = training.activation_checkpointing

    def forward(
        self,
        hidden_states: Sequence[torch.Tensor],
        sides: Sequence[Inputs],
        biases: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        """fp32 [tokens, hidden] of each side, from the same.

        Where activations are checkpointed, what the weights are cast and joined to is not kept
        either, so that one layer is whole at a time.
        """
        if self._checkpointed:
            kept: list[torch.Tensor] = checkpoint(
                self._run,
                hidden_states,
                sides,
                biases,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            return kept
        return self._run(hidden_states, sides, biases)

    def _run(
        self,
        hidden_states: Sequence[torch.Tensor],
        sides: Sequence[Inputs],
        biases: Sequence[torch.Tensor | None],
    ) -> list[torch.Tensor]:
        layer = layer_weights(self._spec, self.weights, self._number, self._dtype)
        site = first_dropout_site(self._number)
        if self._members.size > 1:
            run = partial(run_layer, self._spec, layer, self._members)
        else:
            run = partial(run_whole_layer, self._spec, layer)
        return [
            run(states, side.batch, side.masks, site, bias)
            for states, side, bias in zip(hidden_states, sides, biases, strict=True)
        ]


class BertModule(EncoderModule):
    """BERT, gathered layer by layer.

    Args:
        spec: The shape.
        training: Precision of the matrix products, and whether activations are checkpointed.
        members: That hold the encoder together, of which this worker has its part.
    """

    def __init__(
        self, spec: BertSpec, training: TrainingSettings, members: Members = ALONE
    ) -> None:
        super().__init__(spec)
        self._pooling = spec.pooling
        axes = DIVISION.axes(spec)
        own = {
            name: part_shape(shape, axes.get(name), members.size, members.member)
            for name, shape in weight_shapes(spec).items()
        }
        layers = [_named(own, layer_prefix(number)) for number in range(spec.layers)]
        of_layers = {*chain(*layers)}
        shared = {name: shape for name, shape in own.items() if name not in of_layers}
        self.embeddings = EmbeddingUnit(spec, shared, members)
        self.layers = torch.nn.ModuleList(
            LayerUnit(spec, layer, number, training, members) for number, layer in enumerate(layers)
        )

    def own_units(self) -> Iterator[Unit]:
        """The embeddings, then the layers."""
        yield self.embeddings
        yield from self.layers

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """Those of all units."""
        return {name: value for unit in self.own_units() for name, value in unit.weights.items()}

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        hidden_states, biases = self.embeddings(sides)
        for layer in self.layers:
            hidden_states = layer(hidden_states, sides, biases)
        return [
            pool(self._pooling, states, side.batch)
            for states, side in zip(hidden_states, sides, strict=True)
        ]


def _named(shapes: Shapes, prefix: str) -> Shapes:
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}
