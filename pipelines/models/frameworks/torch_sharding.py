"""Encoders in PyTorch as modules, for libraries that split parameters by module.

A unit is gathered when its ``forward`` begins and let go when it ends, so it takes all sides of a
granule at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pipelines.models.architecture import architecture_of, form_of
from pipelines.models.frameworks.torch import PRECISIONS, Form, finished
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import dense_shapes
from pipelines.settings import TrainingSettings


class Inputs(NamedTuple):
    """A side of a granule, on the device, and its dropout; None without."""

    batch: Batch
    masks: DropoutMasks | None


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


class FinishingUnit(Unit):
    """What follows the architecture's part.

    Args:
        spec: The shape.
        weights: Those of the dense layers.
    """

    def __init__(self, spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(weights)
        self._spec = spec

    def forward(self, pooled: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """fp32 [texts, embedding width] of each side, from [texts, hidden]."""
        weights = self.weights
        return [finished(self._spec, weights, side) for side in pooled]


class EncoderModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """An encoder; computes what :func:`pipelines.models.frameworks.torch.embed` does.

    Args:
        spec: The shape.
        weights: In canonical names; those of the dense layers are copied.
    """

    def __init__(self, spec: EncoderSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.finish = FinishingUnit(spec, {name: weights[name] for name in dense_shapes(spec)})

    def units(self) -> Iterator[Unit]:
        """What is gathered at once, in the order of a forward pass."""
        yield from self.own_units()
        if self.finish.weights:
            yield self.finish

    def own_units(self) -> Iterator[Unit]:
        """The architecture's part of :meth:`units`."""
        raise NotImplementedError

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        raise NotImplementedError

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`Unit.weights`."""
        return {name: value for unit in self.units() for name, value in unit.weights.items()}

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, embedding width] of each side."""
        embeddings: list[torch.Tensor] = self.finish(self.encode(sides))
        return embeddings


class WholeUnit(Unit):
    """All of an encoder, by its form in PyTorch.

    Args:
        spec: The shape.
        weights: Those of the architecture's part.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(
        self, spec: EncoderSpec, weights: Mapping[str, np.ndarray], training: TrainingSettings
    ) -> None:
        super().__init__(weights)
        self._spec = spec
        self._form: Form = form_of(spec, "torch")
        self._dtype = PRECISIONS[training.precision]
        self._checkpointed = training.activation_checkpointing

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        encode = self._form(self._spec, self.weights, self._dtype)
        return [
            encode(side.batch, side.masks, activation_checkpointing=self._checkpointed)
            for side in sides
        ]


class WholeModule(EncoderModule):
    """An encoder that is gathered at once, for architectures without a module of their own.

    Args:
        spec: The shape.
        weights: In canonical names; copied.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(
        self, spec: EncoderSpec, weights: Mapping[str, np.ndarray], training: TrainingSettings
    ) -> None:
        super().__init__(spec, weights)
        own = {name: weights[name] for name in architecture_of(spec).weight_shapes(spec)}
        self.whole = WholeUnit(spec, own, training)

    def own_units(self) -> Iterator[Unit]:
        """The one unit."""
        yield self.whole

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        embeddings: list[torch.Tensor] = self.whole(sides)
        return embeddings


class ModuleForm(Protocol):
    """What an architecture may register for `torch_module`: its own EncoderModule."""

    def __call__(
        self, spec: Any, weights: Mapping[str, np.ndarray], training: TrainingSettings
    ) -> EncoderModule:
        """See :class:`WholeModule`."""
        ...


def encoder_module(
    spec: EncoderSpec, weights: Mapping[str, np.ndarray], training: TrainingSettings
) -> EncoderModule:
    """The module of a spec's architecture.

    Args:
        spec: The shape.
        weights: In canonical names; copied.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """
    architecture = architecture_of(spec)
    own = "torch_module" in architecture.forms
    form: ModuleForm = architecture.form("torch_module") if own else WholeModule
    return form(spec, weights, training)
