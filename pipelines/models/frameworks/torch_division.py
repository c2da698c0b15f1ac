"""Encoders in PyTorch that several workers hold together. Runs on executors.

Each member of a stage computes with its own part of the matrices, as plain tensors and with the
kernels of the undivided encoder. What goes into divided matrices is the same on all members, and
what comes out of the second of two is a sum over them: one exchange of activations on the way
there, and one of their gradients on the way back.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, arXiv:1909.08053, whose f and g are :meth:`Members.enter` and
:meth:`Members.add_up`.

Encoders in PyTorch as modules, for libraries that split parameters by module.

A unit is gathered when its ``forward`` begins and let go when it ends, so it takes all sides of a
granule at once.

Modules are made without memory for their parameters, on PyTorch's device `meta`, for libraries to
split them first: :func:`allocate` gives memory to what is left to hold.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as processes
from torch.nn import functional

from pipelines.models.architecture import Shapes, architecture_of, form_of
from pipelines.models.frameworks.torch import PRECISIONS, Batch, DropoutMasks, Form, finished
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import dense_shapes, part_bounds
from pipelines.settings import TrainingSettings


class Members:
    """The workers that hold a stage together.

    Args:
        group: Their process group; None for a worker that holds it alone.

    Attributes:
        group: The same.
        size: How many they are.
        member: Which of them this worker is.
        seconds: In their exchanges so far, waiting for others included; a GPU only queues them.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else processes.get_world_size(group)
        self.member = 0 if group is None else processes.get_rank(group)
        self.seconds = 0.0

    def enter(self, states: torch.Tensor) -> torch.Tensor:
        """States as they are, whose gradient is the sum of the members'."""
        return states if self.size == 1 else _Enter.apply(states, self)

    def add_up(self, parts: torch.Tensor) -> torch.Tensor:
        """The sum of the members' tensors in fp32, of which each has the whole gradient."""
        return parts if self.size == 1 else _AddUp.apply(parts.float(), self)

    def part(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """This member's part of what each of them has."""
        first, last = part_bounds(tensor.shape[axis], self.size, self.member)
        return tensor.narrow(axis, first, last - first)

    def add_up_in_place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replaces a tensor without a gradient by the sum of the members'."""
        if self.size > 1:
            began = time.perf_counter()
            processes.all_reduce(tensor, group=self.group)
            self.seconds += time.perf_counter() - began
        return tensor

    def look_up(
        self,
        rows: torch.Tensor,
        ids: torch.Tensor,
        total: int,
        *,
        sparse: bool,
        padding: int | None = None,
    ) -> torch.Tensor:
        """Rows of a table that is divided by its rows.

        Args:
            rows: Those of this member.
            ids: int64 [n], numbers of rows of the whole table.
            total: Rows of the whole table.
            sparse: Makes the gradient of the rows a sparse tensor.
            padding: The number of a row that has no gradient.

        Returns:
            [n, width].
        """
        if self.size == 1:
            return functional.embedding(ids, rows, padding_idx=padding, sparse=sparse)
        first, last = part_bounds(total, self.size, self.member)
        own = torch.nonzero((ids >= first) & (ids < last)).flatten()
        # A negative number would be taken for one from the end.
        held = None if padding is None or not first <= padding < last else padding - first
        found = functional.embedding(
            ids.index_select(0, own) - first,
            rows,
            padding_idx=held,
            sparse=sparse,
        )
        empty = rows.new_zeros(len(ids), rows.shape[1])
        return self.add_up(empty.index_copy(0, own, found))


class _Enter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, members: Members) -> torch.Tensor:
        ctx.members = members
        return states.view_as(states)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        # In fp32 also where what the states go into is in bf16: a sum is rounded once.
        whole = ctx.members.add_up_in_place(grad_output.float().contiguous().clone())
        return whole.to(grad_output.dtype), None


class _AddUp(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, members: Members) -> torch.Tensor:
        return members.add_up_in_place(parts.contiguous().clone())

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_output, None


@dataclass(frozen=True)
class Part:
    """What of an encoder a worker computes.

    Attributes:
        layers: Those of its stage.
        members: That hold the stage together.
    """

    layers: range
    members: Members


class DividedEncode(Protocol):
    """The forward pass of members' parts, over weights that are ready for it.

    It is what :class:`.torch.Encode` is.
    """

    def __call__(
        self,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
        sparse_words: bool = False,
    ) -> torch.Tensor:
        """fp32 [texts, hidden], before dense layers; of an encoder of one stage."""
        ...


class StageEncode(DividedEncode, Protocol):
    """The same of a stage, of an architecture that can be divided into stages."""

    def first_states(
        self, batch: Batch, masks: DropoutMasks | None, *, sparse_words: bool = False
    ) -> torch.Tensor:
        """fp32 [tokens, hidden], as the first layer takes them; of the first stage."""
        ...

    def run_layers(
        self,
        states: torch.Tensor,
        batch: Batch,
        masks: DropoutMasks | None,
        *,
        activation_checkpointing: bool = False,
    ) -> torch.Tensor:
        """fp32 [tokens, hidden] behind the layers of the stage."""
        ...

    def pooled(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        """fp32 [texts, hidden]; of the last stage."""
        ...


class DividedForm(Protocol):
    """What an architecture registers for `torch_division`."""

    def __call__(
        self, spec: Any, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, part: Part
    ) -> DividedEncode:
        """Makes weights ready; see :class:`.torch.Form`.

        Args:
            spec: Of the whole encoder.
            weights: fp32 on one device, this worker's parts of those of its stage.
            dtype: Of the matrix products.
            part: Which these are.
        """
        ...


class StageForm(Protocol):
    """The same of an architecture that can be divided into stages."""

    def __call__(
        self, spec: Any, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, part: Part
    ) -> StageEncode:
        """See :class:`DividedForm`."""
        ...


class Inputs(NamedTuple):
    """A side of a granule, on the device, and its dropout; None without."""

    batch: Batch
    masks: DropoutMasks | None


class Unit(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Parameters in canonical names, without memory.

    Args:
        shapes: Of the parameters.
    """

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
    """What follows the architecture's part.

    Args:
        spec: The shape.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(dense_shapes(spec))
        self._spec = spec

    def forward(self, pooled: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """fp32 [texts, embedding width] of each side, from [texts, hidden]."""
        weights = self.weights
        return [finished(self._spec, weights, side) for side in pooled]


class EncoderModule(torch.nn.Module, ABC):  # type: ignore[misc] # torch is not followed
    """An encoder; computes what :func:`pipelines.models.frameworks.torch.embed` does.

    Args:
        spec: The shape.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.finish = FinishingUnit(spec)

    def units(self) -> Iterator[torch.nn.Module]:
        """What is gathered at once, in the order of a forward pass.

        Parameters that are in none of them are gathered for the whole of it.
        """
        yield from self.own_units()
        if self.finish.weights:
            yield self.finish

    @abstractmethod
    def own_units(self) -> Iterator[torch.nn.Module]:
        """The architecture's part of :meth:`units`."""

    @property
    @abstractmethod
    def own_weights(self) -> dict[str, torch.Tensor]:
        """The architecture's part of :attr:`weights`."""

    @abstractmethod
    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`Unit.weights`."""
        return self.own_weights | self.finish.weights

    def forward(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, embedding width] of each side."""
        embeddings: list[torch.Tensor] = self.finish(self.encode(sides))
        return embeddings


class WholeUnit(Unit):
    """All of an encoder, by its form in PyTorch.

    Args:
        spec: The shape.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(self, spec: EncoderSpec, training: TrainingSettings) -> None:
        super().__init__(architecture_of(spec).weight_shapes(spec))
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
        training: Precision of the matrix products, and whether activations are checkpointed.
    """

    def __init__(self, spec: EncoderSpec, training: TrainingSettings) -> None:
        super().__init__(spec)
        self.whole = WholeUnit(spec, training)

    def own_units(self) -> Iterator[Unit]:
        """The one unit."""
        yield self.whole

    @property
    def own_weights(self) -> dict[str, torch.Tensor]:
        """Those of the unit."""
        return self.whole.weights

    def encode(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """fp32 [texts, hidden] of each side, before dense layers."""
        embeddings: list[torch.Tensor] = self.whole(sides)
        return embeddings


class ModuleForm(Protocol):
    """What an architecture may register for `torch_module`: its own EncoderModule."""

    def __call__(self, spec: Any, training: TrainingSettings) -> EncoderModule:
        """See :class:`WholeModule`."""
        ...


class DividedModuleForm(Protocol):
    """The same of an architecture that has a division."""

    def __call__(self, spec: Any, training: TrainingSettings, members: Members) -> EncoderModule:
        """A module of one member's part; see :mod:`.torch_division`."""
        ...


def encoder_module(spec: EncoderSpec, training: TrainingSettings) -> EncoderModule:
    """The module of a spec's architecture, whose parameters have no memory.

    Args:
        spec: The shape.
        training: Precision of the matrix products, and whether activations are checkpointed.
    """
    architecture = architecture_of(spec)
    own = "torch_module" in architecture.forms
    form: ModuleForm = architecture.form("torch_module") if own else WholeModule
    return form(spec, training)


def divided_module(
    spec: EncoderSpec, training: TrainingSettings, members: Members
) -> EncoderModule:
    """The module of a member's part of an encoder whose architecture has a division.

    Args:
        spec: The shape of the whole.
        training: Precision of the matrix products, and whether activations are checkpointed.
        members: That hold it together.
    """
    form: DividedModuleForm = form_of(spec, "torch_module")
    return form(spec, training, members)


def allocate(module: torch.nn.Module, device: torch.device) -> None:
    """Gives memory to the parameters of a module that have none, and are of no value.

    Args:
        module: Has parameters that are whole, or this worker's parts. Buffers stay as they are.
        device: Where they are to be.
    """
    # What `to_empty` does to all tensors; libraries that split parameters know of it.
    module._apply(lambda one: torch.empty_like(one, device=device) if one.is_meta else one)


def copy_weights(weights: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]) -> None:
    """Fills parameters, one after the other.

    Args:
        weights: Whole parameters, in canonical names.
        arrays: Have all of them.
    """
    for name, parameter in weights.items():
        parameter.detach().copy_(torch.from_numpy(arrays[name]))
