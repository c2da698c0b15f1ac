"""The PyTorch encoder as modules, for libraries that split parameters by module.

A unit is gathered when its ``forward`` begins and let go when it ends, so it takes all sides of a
granule at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.torch import (
    PRECISIONS,
    first_place,
    layer_weights,
    pool,
    run_layer,
    token_vectors,
)
from pipelines.encoder.torch_kernels import Batch, Noise
from pipelines.settings import TrainingSettings


class Inputs(NamedTuple):
    """A side of a granule, on the device, and its noise; None without dropout."""

    batch: Batch
    noise: Noise | None


class Unit(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Parameters in canonical names.

    Args:
        weights: fp32 arrays; copied.
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        # A module's own names may have no dots.
        self._keys = {name: name.replace(".", "/") for name in weights}
        for name, value in weights.items():
            self.register_parameter(self._keys[name], torch.nn.Parameter(torch.tensor(value)))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters as they are now: whole while the unit computes, or this worker's part."""
        return {name: getattr(self, key) for name, key in self._keys.items()}


class EmbeddingUnit(Unit):
    """What is before the first layer.

    Args:
        spec: The encoder's shape.
        weights: Those whose names begin with ``embeddings.``.
    """

    def __init__(self, spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        self._spec = spec

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [tokens, hidden] of each side."""
        weights = self.weights
        return [token_vectors(self._spec, weights, side.batch, side.noise) for side in sides]


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
        spec: EncoderSpec,
        weights: Mapping[str, np.ndarray],
        number: int,
        training: TrainingSettings,
    ) -> None:
        super().__init__(weights)
        self._spec = spec
        self._number = number
        self._type = PRECISIONS[training.precision]
        self._checkpointed = training.activation_checkpointing

    def forward(
        self, streams: Sequence[torch.Tensor], sides: Sequence[Inputs]
    ) -> list[torch.Tensor]:
        """fp32 [tokens, hidden] of each side, from the same.

        Where activations are checkpointed, what the weights are cast and joined to is not kept
        either, so that one layer is whole at a time.
        """
        if self._checkpointed:
            kept: list[torch.Tensor] = checkpoint(
                self._run, streams, sides, use_reentrant=False, preserve_rng_state=False
            )
            return kept
        return self._run(streams, sides)

    def _run(self, streams: Sequence[torch.Tensor], sides: Sequence[Inputs]) -> list[torch.Tensor]:
        prefix = layer_prefix(self._number)
        layer = layer_weights(self._spec, self.weights, prefix, self._type)
        place = first_place(self._number)
        return [
            run_layer(self._spec, layer, stream, side.batch, side.noise, place)
            for stream, side in zip(streams, sides, strict=True)
        ]


class EncoderModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """The encoder; computes what :func:`pipelines.encoder.torch.embed` does.

    Args:
        spec: The shape.
        weights: In canonical names; copied.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(
        self, spec: EncoderSpec, weights: Mapping[str, np.ndarray], training: TrainingSettings
    ) -> None:
        super().__init__()
        self._spec = spec
        self.embeddings = EmbeddingUnit(spec, _named(weights, "embeddings."))
        self.layers = torch.nn.ModuleList(
            LayerUnit(spec, _named(weights, layer_prefix(number)), number, training)
            for number in range(spec.layers)
        )

    def units(self) -> Iterator[Unit]:
        """What is gathered at once, in the order of a forward pass."""
        yield self.embeddings
        yield from self.layers

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`Unit.weights`."""
        return {name: value for unit in self.units() for name, value in unit.weights.items()}

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side."""
        streams = self.embeddings(sides)
        for layer in self.layers:
            streams = layer(streams, sides)
        return [
            pool(self._spec, stream, side.batch)
            for stream, side in zip(streams, sides, strict=True)
        ]


def layer_prefix(number: int) -> str:
    """What the names of a layer's weights begin with."""
    return f"encoder.layer.{number}."


def _named(weights: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name: value for name, value in weights.items() if name.startswith(prefix)}
