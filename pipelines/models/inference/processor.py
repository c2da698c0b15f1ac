"""The abilities of this machine's processor, as Linux reports them. Runs anywhere."""

from __future__ import annotations

import re
from pathlib import Path

CPU_INFORMATION = Path("/proc/cpuinfo")
BF16_CAPABILITY = (8, 0)
"""CUDA's compute capability from which on GPUs have bf16 units; source: CUDA C++ Programming Guide,
"Compute Capabilities"."""
_WIDEST = {
    # What compilers call x86-64-v4 and v3, and MKL's kernels need.
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx2": ("avx2", "fma"),
}


def computes_in_bf16(information: Path = CPU_INFORMATION) -> bool:
    """Return whether a CPU multiplies matrices in bf16; an unknown CPU does not."""
    return _tells(information, r"\b(avx512_bf16|amx_bf16|bf16)\b")


def multiplies_in_int8(information: Path = CPU_INFORMATION) -> bool:
    """Return whether a CPU sums products of int8 in 32 bits; an unknown CPU does not.

    The older instructions for int8 sum pairs in 16 bits, and overflow.
    """
    return _tells(information, r"\b(avx512_vnni|avx_vnni|amx_int8)\b")


def mkl_ignores_avx512(information: Path = CPU_INFORMATION) -> bool:
    """Return whether a CPU has AVX-512, which Intel's MKL leaves unused on others' CPUs.

    MKL then takes kernels for AVX2, of half the width; before its version of 2020, those for SSE.
    """
    return widest_unused_by_mkl(information) == "avx512"


def widest_unused_by_mkl(information: Path = CPU_INFORMATION) -> str | None:
    """Return the widest instructions of a CPU that is not Intel's: ``avx512``, ``avx2`` or None."""
    if not _tells(information, r"vendor_id\s*:\s*(?!GenuineIntel)\w"):
        return None
    for name, flags in _WIDEST.items():
        if all(_tells(information, rf"\b{flag}\b") for flag in flags):
            return name
    return None


def _tells(information: Path, pattern: str) -> bool:
    return information.exists() and bool(re.search(pattern, information.read_text()))
