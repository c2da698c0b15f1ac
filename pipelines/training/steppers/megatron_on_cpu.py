"""What Megatron-Core needs of CUDA, where there is no GPU. Runs on executors.

The library takes a GPU for granted: some functions ask for tensors on it by name. Its modules that
have such functions get another PyTorch under their own name for it, and nothing else of the process
changes. Releases 0.16 were read for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core import utils
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.optimizer import clip_grads, optimizer
from megatron.core.pipeline_parallel import p2p_communication, schedules

_MODULES = (
    schedules,  # Counts tokens on the GPU.
    p2p_communication,  # Receives there, and waits for it.
    param_and_grad_buffer,  # Has the buffers of weights and gradients there.
    optimizer,  # Has its scales and flags there,
    clip_grads,  # and norms,
    utils,  # which are added up there.
)


class _CudaOfCpu:
    """What those modules call of ``torch.cuda``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        """Where buffers are made."""
        return torch.device("cpu")

    def synchronize(self) -> None:
        """Nothing is queued on a CPU."""


class _TorchOfCpu:
    """PyTorch, but for tensors on a GPU, which are made in the host's memory."""

    cuda = _CudaOfCpu()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **named: Any) -> torch.Tensor:
        """See ``torch.zeros``; any device is the CPU."""
        return torch.zeros(*size, **named)

    def tensor(self, data: Any, *, device: Any = None, **named: Any) -> torch.Tensor:
        """See ``torch.tensor``; any device is the CPU."""
        return torch.tensor(data, **named)


def run_on_cpu() -> None:
    """Has the library compute on the CPU, over Gloo; once in a process that has no GPU."""
    for module in _MODULES:
        module.torch = _TorchOfCpu()
    # Gloo does not send several tensors as one, which is what this makes of operations inside.
    param_and_grad_buffer._coalescing_manager = _one_by_one
    # The library's looks for the name of a GPU's type.
    optimizer.clip_grad_by_total_norm_fp32 = _clip


def pass_for_gpu(parameter: torch.nn.Parameter) -> None:
    """Has the distributed optimiser accept a weight, which it does by the name of its type."""
    parameter.type = lambda: "torch.cuda.FloatTensor"


def _clip(parameters: Sequence[Any], max_norm: float, total_norm: float, **others: Any) -> None:
    """Shortens gradients in place, if they are longer than the longest that is allowed."""
    share = max_norm / (total_norm + 1e-6)
    if share < 1:
        torch._foreach_mul_([one.grad for one in parameters], share)


@contextmanager
def _one_by_one(*arguments: Any, **named: Any) -> Iterator[None]:
    yield
