"""The parts of an encoder divided among workers, and their exchanges. Runs on executors.

Each member of a stage computes with its part of the matrices, as plain tensors and by the kernels
of the undivided encoder. The input of divided matrices is the same on all members. The output of
the second of two is a sum over members: one exchange of activations forward, and one of gradients
back. A worker that holds the whole encoder exchanges nothing.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, arXiv:1909.08053, whose f and g are :meth:`Members.enter` and
:meth:`Members.add_up`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as processes
from torch.nn import functional

from pipelines.models.weights import part_bounds


class Members:
    """The workers of one stage.

    Without a process group, one worker holds it alone. ``seconds`` is the time in their exchanges
    so far, waiting included; a GPU only queues them.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else processes.get_world_size(group)
        self.member = 0 if group is None else processes.get_rank(group)
        self.seconds = 0.0

    def enter(self, states: torch.Tensor) -> torch.Tensor:
        """Return states unchanged; their gradient is the sum of the members'."""
        return states if self.size == 1 else _Enter.apply(states, self)

    def add_up(self, parts: torch.Tensor) -> torch.Tensor:
        """Return the sum of the members' tensors in fp32; each gets the whole gradient."""
        return parts if self.size == 1 else _AddUp.apply(parts.float(), self)

    def part(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """Return this member's part of a tensor held by all members."""
        first, last = part_bounds(tensor.shape[axis], self.size, self.member)
        return tensor.narrow(axis, first, last - first)

    def add_up_in_place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor without a gradient by the sum of the members' tensors."""
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
        """Return rows [n, width] of a table of ``total`` rows, divided among members.

        Args:
            rows: This member's rows.
            ids: int64 [n], row numbers in the whole table.
            sparse: Make the gradient of the rows a sparse tensor.
            padding: The number of a row without a gradient.
        """
        if self.size == 1:
            return functional.embedding(ids, rows, padding_idx=padding, sparse=sparse)
        first, last = part_bounds(total, self.size, self.member)
        places = torch.nonzero((ids >= first) & (ids < last)).flatten()
        # A negative number would be taken for one from the end.
        held = None if padding is None or not first <= padding < last else padding - first
        found = functional.embedding(
            ids.index_select(0, places) - first,
            rows,
            padding_idx=held,
            sparse=sparse,
        )
        empty = rows.new_zeros(len(ids), rows.shape[1])
        return self.add_up(empty.index_copy(0, places, found))


class _Enter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, members: Members) -> torch.Tensor:
        ctx.members = members
        return states.view_as(states)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        # In fp32 even for bf16 products: the sum is rounded once.
        total = ctx.members.add_up_in_place(grad_output.float().contiguous().clone())
        return total.to(grad_output.dtype), None


class _AddUp(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, members: Members) -> torch.Tensor:
        # A copy: the sum takes its place, and the caller may still hold the parts.
        return members.add_up_in_place(parts.contiguous().clone())

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_output, None


ALONE = Members()
"""The members of a worker that holds the whole encoder."""


@dataclass(frozen=True)
class Part:
    """A worker's part of an encoder: the layers of its stage, None for all, and its members."""

    layers: range | None = None
    members: Members = ALONE


WHOLE = Part()
"""The whole encoder."""
