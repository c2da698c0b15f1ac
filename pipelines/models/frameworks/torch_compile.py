"""PyTorch's compiler, for the operations of a layer that follow one another without attention.

It joins those between two matrix products in one kernel: fewer launches, and fewer passes over the
memory. Whether this process compiles is its own matter, as the number of its threads is. Source:
Ansel and others, "PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation
and Graph Compilation", ASPLOS 2024, doi:10.1145/3620665.3640366.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from pipelines.errors import InputError

_Result = TypeVar("_Result")
_MOST_FORMS = 64
"""Compiled forms of one function. PyTorch's eight would not do for a process of Spark that trains
several encoders one after the other."""


@dataclass
class _Process:
    compiles: bool = False


_PROCESS = _Process()


def compile_nothing() -> None:
    """Have :func:`compiled` leave functions as they are; so it is in a new process."""
    _PROCESS.compiles = False


def compile_layers(device: torch.device, folder: Path) -> None:
    """Have :func:`compiled` compile for a device; compiled code is kept in the folder.

    Raises:
        InputError: A C++ compiler, Python's header files, or Triton for a GPU are missing.
    """
    # PyTorch's own folder in /tmp may be somebody else's, and it loads code from there.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    # A pool of processes would outlive this one for a while.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if missing := _missing(device):
        raise InputError(
            "training.compile",
            f"PyTorch cannot compile on this worker without {missing}",
            "Install it on all workers, or set training.compile to false",
        )
    _PROCESS.compiles = True


def _missing(device: torch.device) -> str | None:
    """Return what PyTorch needs to compile and does not find; None if it finds all."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler
    from torch.utils._triton import has_triton

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "a C++ compiler"
    # Debian has the headers in a package of their own.
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return f"the header files of Python {platform.python_version()}"
    return None if device.type == "cpu" or has_triton() else "Triton"


def compiles() -> bool:
    """Tell whether this process compiles what it computes now: only passes with a gradient."""
    return _PROCESS.compiles and torch.is_grad_enabled()


def compiled(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Return a function over tensors and constants, compiled if :func:`compiles` says so."""
    return _compiled(function) if compiles() else function


def of_any_length(*values: Any) -> None:
    """Have compiled code take any number of tokens of the tensors [tokens, ...] among values."""
    for value in values if compiles() else ():
        if isinstance(value, torch.Tensor):
            torch._dynamo.maybe_mark_dynamic(value, 0)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    from torch._dynamo import config as tracing
    from torch._inductor import config as compiling

    # Whoever has imported it before has not seen the variable.
    compiling.compile_threads = 1
    tracing.recompile_limit = _MOST_FORMS
    made: Callable[..., Any] = torch.compile(function)
    return made
