"""Products with weights in PyTorch, by the library that multiplies fastest on this processor.

PyTorch multiplies fp32 matrices on a CPU by MKL, and bf16 ones by oneDNN. MKL uses AVX-512 on
processors of Intel alone; on others that have it, oneDNN's fp32 products are twice as fast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

from pipelines.models.inference.processor import mkl_ignores_avx512


def linear(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """What :func:`torch.nn.functional.linear` gives, but for rounding.

    Args:
        states: [..., in].
        weight: [out, in].
        bias: [out], if any.

    Returns:
        [..., out].
    """
    if not _is_for_onednn(states, weight):
        return functional.linear(states, weight, bias)
    product: torch.Tensor = _Linear.apply(states, weight, bias)
    return product


def multiplied(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The same where nobody asks for its gradient: ``left`` times the transposed ``right``."""
    if not _is_for_onednn(left, right):
        return functional.linear(left, right, bias)
    return _by_onednn(left, right, bias)


def _is_for_onednn(left: torch.Tensor, right: torch.Tensor) -> bool:
    is_fp32 = left.dtype == right.dtype == torch.float32 and left.numel() > 0
    is_own = right.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return is_fp32 and is_own and _prefers_onednn()


@lru_cache(maxsize=1)
def _prefers_onednn() -> bool:
    # PyTorch has it for the code that its compiler writes, and not in every build.
    return mkl_ignores_avx512() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _by_onednn(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """oneDNN's product with its gradient, of which PyTorch knows nothing."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """See :func:`linear`; keeps only what a gradient that is asked for needs."""
        needs_states, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if needs_weight else None, weight if needs_states else None)
        return _by_onednn(states, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of states, weight and bias."""
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad_output.reshape(-1, grad_output.shape[-1])
        return (
            _by_onednn(grad_output, weight.t()) if needs_states else None,
            _by_onednn(rows.t(), states.reshape(-1, states.shape[-1]).t())
            if needs_weight
            else None,
            rows.sum(0) if needs_bias else None,
        )
