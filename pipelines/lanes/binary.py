"""Binary columns that hold numbers, read without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def binary_values(column: pa.Array, kind: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """What a binary column holds, without a copy.

    Args:
        column: Its values are whole numbers of ``kind``, one after the other.
        kind: Type of a number.

    Returns:
        All numbers in one array, and int32 [rows] with how many each row has.
    """
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)
    offsets = offsets[column.offset : column.offset + len(column) + 1] // kind.itemsize
    values = np.frombuffer(data, kind, count=offsets[-1]) if data else np.empty(0, kind)
    return values[offsets[0] :], np.diff(offsets)
