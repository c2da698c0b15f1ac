"""BERT in PyTorch as modules: the embeddings and each layer are gathered on their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from pipelines.models.bert.spec import BertSpec
from pipelines.models.bert.torch import (
    embedding_output,
    first_dropout_site,
    layer_weights,
    pool,
    run_layer,
)
from pipelines.models.bert.weights import layer_prefix
from pipelines.models.frameworks.torch import PRECISIONS
from pipelines.models.frameworks.torch_sharding import EncoderModule, Inputs, Unit
from pipelines.settings import TrainingSettings


class EmbeddingUnit(Unit):
    """What is before the first layer.

    Args:
        spec: The encoder's shape.
        weights: Those whose names begin with ``embeddings.``.
    """

    def __init__(self, spec: BertSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        self._spec = spec

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [tokens, hidden] of each side."""
        weights = self.weights
        return [embedding_output(self._spec, weights, side.batch, side.masks) for side in sides]


class LayerUnit(Unit):
    """A layer.

    Args:
        spec: The encoder's shape.
        weights: The layer's.
        number: Of the layer.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(
        self,
        spec: BertSpec,
        weights: Mapping[str, np.ndarray],
        number: int,
        training: TrainingSettings,
    ) -> None:
        super().__init__(weights)
        self._spec = spec
        self._number = number
        self._dtype = PRECISIONS[training.precision]
        self._checkpointed = training.activation_checkpointing

    def forward(
        self, hidden_states: Sequence[torch.Tensor], sides: Sequence[Inputs]
    ) -> list[torch.Tensor]:
        """fp32 [tokens, hidden] of each side, from the same.

        Where activations are checkpointed, what the weights are cast and joined to is not kept
        either, so that one layer is whole at a time.
        """
        if self._checkpointed:
            kept: list[torch.Tensor] = checkpoint(
                self._run, hidden_states, sides, use_reentrant=False, preserve_rng_state=False
            )
            return kept
        return self._run(hidden_states, sides)

    def _run(
        self, hidden_states: Sequence[torch.Tensor], sides: Sequence[Inputs]
    ) -> list[torch.Tensor]:
        layer = layer_weights(self._spec, self.weights, self._number, self._dtype)
        site = first_dropout_site(self._number)
        return [
            run_layer(self._spec, layer, states, side.batch, side.masks, site)
            for states, side in zip(hidden_states, sides, strict=True)
        ]


class BertModule(EncoderModule):
    """BERT, gathered layer by layer.

    Args:
        spec: The shape.
        weights: In canonical names; copied.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(
        self, spec: BertSpec, weights: Mapping[str, np.ndarray], training: TrainingSettings
    ) -> None:
        super().__init__(spec)
        self._pool = partial(pool, spec)
        self.embeddings = EmbeddingUnit(spec, _named(weights, "embeddings."))
        self.layers = torch.nn.ModuleList(
            LayerUnit(spec, _named(weights, layer_prefix(number)), number, training)
            for number in range(spec.layers)
        )

    def units(self) -> Iterator[Unit]:
        """The embeddings, then the layers."""
        yield self.embeddings
        yield from self.layers

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, of any length."""
        hidden_states = self.embeddings(sides)
        for layer in self.layers:
            hidden_states = layer(hidden_states, sides)
        return [
            self._pool(states, side.batch)
            for states, side in zip(hidden_states, sides, strict=True)
        ]


def _named(weights: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in weights.items() if name.startswith(prefix)}
