"""Columns of lists: an example has several hard negatives, and several scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def lists_of(columns: Sequence[pa.Array]) -> pa.ListArray:
    """A column of lists: in each row what the columns have there, in their order."""
    rows, count = len(columns[0]), len(columns)
    by_row = np.arange(count * rows).reshape(count, rows).T.ravel()
    values = pa.concat_arrays(columns).take(pa.array(by_row))
    return pa.ListArray.from_arrays(np.arange(0, count * rows + 1, count, dtype=np.int32), values)


def list_lengths(lists: pa.ListArray) -> np.ndarray:
    """How many values each row has, int32 [rows]; zero for a null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int32)


def with_values(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """The same lists of other values.

    Args:
        lists: May have nulls, which stay.
        values: As many as ``lists.flatten()`` has.
    """
    offsets = np.concatenate([[0], np.cumsum(list_lengths(lists))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=lists.is_null())
