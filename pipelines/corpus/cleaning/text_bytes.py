"""The bytes of a column of texts, in which ASCII characters are counted all at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]
Table = npt.NDArray[np.bool_]
"""For each byte whether it counts."""


def text_bytes(texts: pa.StringArray) -> tuple[bytes, Places]:
    """The bytes of all texts in a row, where each text begins, and where the last one ends."""
    if not len(texts):
        return b"", np.zeros(1, np.int64)
    bounds = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    buffer = texts.buffers()[2]
    data = b"" if buffer is None else buffer[bounds[0] : bounds[-1]].to_pybytes()
    return data, bounds.astype(np.int64) - bounds[0]


def table_of(characters: Iterable[int]) -> Table:
    """The table in which some bytes count."""
    return np.isin(np.arange(256), list(characters))


def counts_before(data: bytes, places: Places, table: Table) -> Places:
    """How many bytes that count come before each of some places."""
    counts = np.cumsum(table[np.frombuffer(data, np.uint8)], dtype=np.int64)
    return np.append(0, counts)[places]
