"""What several workers that hold an encoder together do with their parts. Runs on executors.

Each member of a stage computes with its own part of the matrices, as plain tensors and with the
kernels of the undivided encoder. What goes into divided matrices is the same on all members, and
what comes out of the second of two is a sum over them: one exchange of activations on the way
there, and one of their gradients on the way back. A worker that holds all of it exchanges nothing.

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


ALONE = Members()
"""Of a worker that holds all of the encoder."""


@dataclass(frozen=True)
class Part:
    """What of an encoder a worker computes.

    Attributes:
        layers: Those of its stage; None for all.
        members: That hold the stage together.
    """

    layers: range | None = None
    members: Members = ALONE


WHOLE = Part()
"""All of it."""
