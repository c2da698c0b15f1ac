"""Binary columns that hold numbers, read without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def binary_values(column: pa.Array, kind: np.dtype[Any]) -> np.ndarray:
    """All numbers that a binary column holds, in one array, without a copy."""
    offsets = value_offsets(column)
    data = column.buffers()[2]
    first, end = offsets[[0, -1]].tolist()
    if not data:
        return np.empty(0, kind)
    return np.frombuffer(data, kind, count=(end - first) // kind.itemsize, offset=first)


def value_offsets(column: pa.Array) -> np.ndarray:
    """Where each value of a binary column begins, and where the last one ends."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    return offsets[column.offset : column.offset + len(column) + 1]
