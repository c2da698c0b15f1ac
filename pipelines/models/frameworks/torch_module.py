"""Encoders in PyTorch as modules, for libraries that split parameters by module.

A unit is gathered when its ``forward`` begins and released when it ends, so it takes all sides of a
granule at once. Parameters begin on PyTorch's device `meta`, without memory, so that libraries
split them first: :func:`allocate` then gives memory to the remainder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from pipelines.models.architecture import Shapes, architecture_of
from pipelines.models.frameworks.torch import finished, prepare
from pipelines.models.frameworks.torch_batch import Batch
from pipelines.models.frameworks.torch_division import ALONE, Members
from pipelines.models.frameworks.torch_dropout import DropoutMasks
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import dense_shapes
from pipelines.settings import TrainingSettings


class Inputs(NamedTuple):
    """A side of a granule on the device, with its dropout masks."""

    batch: Batch
    masks: DropoutMasks | None


class Unit(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Parameters of given shapes in canonical names, without memory."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        # A module's own names may have no dots.
        self._keys = {name: name.replace(".", "/") for name in shapes}
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(torch.empty(shape, device="meta"))
            self.register_parameter(self._keys[name], parameter)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters as they are now: whole while the unit computes, or this worker's part."""
        return {name: getattr(self, key) for name, key in self._keys.items()}


class FinishingUnit(Unit):
    """The dense layers and the normalising after the architecture's part."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(dense_shapes(spec))
        self._spec = spec

    def forward(self, pooled: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return fp32 [texts, embedding width] of each side, from [texts, hidden]."""
        weights = self.weights
        return [finished(self._spec, weights, side) for side in pooled]


class EncoderModule(torch.nn.Module, ABC):  # type: ignore[misc] # torch is not followed
    """An encoder that computes :func:`pipelines.models.frameworks.torch.embed`."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.finish = FinishingUnit(spec)

    def units(self) -> Iterator[torch.nn.Module]:
        """Yield the modules to gather, each as one, in the order of a forward pass.

        Parameters outside of them are gathered for the whole pass.
        """
        yield from self.own_units()
        if self.finish.weights:
            yield self.finish

    @abstractmethod
    def own_units(self) -> Iterator[torch.nn.Module]:
        """Yield the architecture's part of :meth:`units`."""

    @property
    @abstractmethod
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The architecture's part of :attr:`weights`."""

    @abstractmethod
    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, hidden] of each side, before dense layers."""

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`Unit.weights`."""
        return self.own_weights | self.finish.weights

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, embedding width] of each side."""
        embeddings: list[torch.Tensor] = self.finish(self.encode(sides))
        return embeddings


class WholeUnit(Unit):
    """A whole encoder as one unit, by its form in PyTorch."""

    def __init__(self, spec: EncoderSpec, training: TrainingSettings) -> None:
        super().__init__(architecture_of(spec).weight_shapes(spec))
        self._spec = spec
        self._precision = training.precision
        self._checkpointed = training.activation_checkpointing

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, hidden] of each side, before dense layers."""
        encoder = prepare(self._spec, self.weights, self._precision)
        return [
            encoder.encode(side.batch, side.masks, activation_checkpointing=self._checkpointed)
            for side in sides
        ]


class WholeModule(EncoderModule):
    """An encoder gathered at once, for architectures without a module of their own."""

    def __init__(self, spec: EncoderSpec, training: TrainingSettings) -> None:
        super().__init__(spec)
        self.whole = WholeUnit(spec, training)

    def own_units(self) -> Iterator[Unit]:
        """Yield the single unit."""
        yield self.whole

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The weights of the unit."""
        return self.whole.weights

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """Return fp32 [texts, hidden] of each side, before dense layers."""
        embeddings: list[torch.Tensor] = self.whole(sides)
        return embeddings


ModuleForm: TypeAlias = Callable[[Any, TrainingSettings, Members], EncoderModule]
"""What an architecture may register for `torch_module`: its module, with this member's part if it
has a division; see :func:`encoder_module` for the arguments."""


def encoder_module(
    spec: EncoderSpec, training: TrainingSettings, members: Members = ALONE
) -> EncoderModule:
    """Return the module of a spec's architecture, whose parameters have no memory.

    The spec is that of the whole encoder; this worker gets its part among the members. The settings
    give the precision, and whether activations are checkpointed.
    """
    architecture = architecture_of(spec)
    if "torch_module" not in architecture.forms:
        return WholeModule(spec, training)
    form: ModuleForm = architecture.form("torch_module")
    return form(spec, training, members)


def allocate(module: torch.nn.Module, device: torch.device) -> None:
    """Give memory on a device to parameters without any; their values are undefined."""
    # As `to_empty`, but without the tensors that have memory; libraries that split parameters know
    # of `_apply`.
    module._apply(
        lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor
    )


def copy_weights(weights: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Fill whole parameters, in canonical names, one after the other."""
    for name, parameter in weights.items():
        parameter.detach().copy_(torch.from_numpy(arrays[name]))
