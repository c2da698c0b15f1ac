"""What this machine's processor can do. Runs on an executor, and on the driver."""

from __future__ import annotations

import re
from pathlib import Path

CPU_INFORMATION = Path("/proc/cpuinfo")
BF16_CAPABILITY = (8, 0)
"""CUDA's compute capability from which on GPUs have units for bf16; source: CUDA C++ Programming
Guide, "Compute Capabilities"."""


def computes_in_bf16(information: Path = CPU_INFORMATION) -> bool:
    """Whether a CPU multiplies matrices in bf16; where nothing is known of it, it does not.

    Args:
        information: What Linux tells of it.
    """
    if not information.exists():
        return False
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", information.read_text()))
