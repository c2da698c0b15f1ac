"""BERT in PyTorch as modules: the embeddings and each layer are gathered on their own.

What is gathered is the whole, or one member's part where several workers hold the encoder together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import torch
from torch.utils.checkpoint import checkpoint

from pipelines.models.architecture import Shapes
from pipelines.models.bert.division import DIVISION
from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.torch import (
    first_dropout_site,
    layer_weights,
    relative_bias,
    run_layer,
)
from pipelines.models.bert.torch_division import first_states
from pipelines.models.bert.torch_division import run_layer as run_divided_layer
from pipelines.models.bert.weights import layer_prefix, weight_shapes
from pipelines.models.division import part_shape
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.frameworks.torch_batch import pool
from pipelines.models.frameworks.torch_division import Members
from pipelines.models.frameworks.torch_sharding import EncoderModule, Inputs, Unit
from pipelines.settings import TrainingSettings

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
            run = partial(run_divided_layer, self._spec, layer, self._members)
        else:
            run = partial(run_layer, self._spec, layer)
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
