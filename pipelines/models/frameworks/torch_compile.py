"""PyTorch's compiler, for the operations of a layer that follow one another without attention.

It joins those between two matrix products in one kernel: fewer launches, and fewer passes over the
memory. Whether this process compiles is its own matter, as the number of its threads is. Source:
Ansel and others, "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation
and Graph Compilation", ASPLOS 2024, doi:10.1145/3620665.3640366.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch

from pipelines.errors import InputError

_Result = TypeVar("_Result")
_KEPT_CODES = 64
"""Compiled forms of one function. PyTorch's eight would not do for a process of Spark that trains
several encoders one after the other."""


@dataclass
class _Process:
    compiles: bool = False


_PROCESS = _Process()


def set_compiling(compiles: bool) -> None:
    """Have :func:`compiled` compile in this process, or not."""
    _PROCESS.compiles = compiles


def compiles() -> bool:
    """Tell whether this process compiles what it computes now: only passes with a gradient."""
    return _PROCESS.compiles and torch.is_grad_enabled()


def check_compiler(device: torch.device) -> None:
    """Refuse to compile for a device whose compiler is missing.

    Raises:
        InputError: There is no C++ compiler for a CPU, or no Triton for a GPU.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        missing = "a C++ compiler"
    else:
        missing = "" if device.type == "cpu" or has_triton() else "Triton"
    if missing:
        raise InputError(
            "training.compile",
            f"PyTorch cannot compile on this worker, which has no {missing.removeprefix('a ')}",
            f"Install {missing} on all workers, or set it to false",
        )


def compiled(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return a function over tensors and constants, compiled if :func:`compiles` says so."""
    return _compiled(function) if compiles() else function


def of_any_length(*values: Any) -> None:
    """Have compiled code take any number of tokens of the tensors [tokens, ...] among values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            torch._dynamo.maybe_mark_dynamic(value, 0)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._dynamo import config as tracing
    from torch._inductor import config as compiling

    # The compiler's pool of processes would outlive this one for a while.
    compiling.compile_threads = 1
    tracing.recompile_limit = _KEPT_CODES
    made: Callable[..., Any] = torch.compile(function)
    return made
