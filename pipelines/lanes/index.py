"""The index of a lane: where each granule stands in its part file, and its checksum.

``lanes/lane-007/granules.npy`` has a line per granule. Its own checksum is in the manifest. So
what is read through it is what was written there when the lanes were prepared, byte by byte. A
granule is compared with its checksum when it is read, which reads nothing that the granule does
not need.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from pipelines.errors import PipelineError
from pipelines.files.locations import Location

INDEX_FILE = "granules.npy"
INDEX_TYPE = np.dtype([("offset", "<u8"), ("length", "<u8"), ("checksum", "<u8")])
ANEW = "`sentence-pipelines prepare` with prepared.reuse=false writes the lanes anew"


class IndexEntry(NamedTuple):
    """A line of the index.

    Attributes:
        offset: First byte of the granule's Arrow message in its part file.
        length: Bytes of the message.
        checksum: XXH3 of these bytes, 64 bits.
    """

    offset: int
    length: int
    checksum: int


def checksum(data: bytes | pa.Buffer) -> int:
    """XXH3 of what is written, 64 bits: it runs at the memory's speed."""
    digest: int = xxhash.xxh3_64_intdigest(data)
    return digest


def encode_index(entries: Sequence[IndexEntry]) -> tuple[bytes, str]:
    """The content of an index file, and its checksum as the manifest has it."""
    content = _encoded(np.array(entries, INDEX_TYPE))
    return content, f"{checksum(content):016x}"


def _encoded(index: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, index, allow_pickle=False)
    return file.getvalue()


def index_size(rows: int) -> int:
    """Bytes of an index file.

    Args:
        rows: Granules in a lane.
    """
    return len(_encoded(np.zeros(rows, INDEX_TYPE)))


def decode_index(content: bytes, path: Location, expected: str) -> np.ndarray:
    """The lines of an index file.

    Args:
        content: Of the file.
        path: The file, to name it in an error.
        expected: Its checksum, as the manifest has it.

    Returns:
        ``INDEX_TYPE`` [rows].

    Raises:
        PipelineError: It is not the one that the manifest speaks of.
    """
    if f"{checksum(content):016x}" != expected:
        raise PipelineError(f"{path} is damaged: its checksum is not that of the manifest; {ANEW}")
    index: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return index


def checked(
    message: bytes | pa.Buffer, entry: IndexEntry, path: Location, granule: int
) -> pa.Buffer:
    """A granule's bytes, without a copy.

    Args:
        message: What stands in its part file where it should.
        entry: The granule's line of the index.
        path: The part file, to name it in an error.
        granule: Number of the granule in the file, likewise.

    Raises:
        PipelineError: They are not those that were written.
    """
    if len(message) < entry.length:
        raise PipelineError(f"{path} ends before its granule {granule}; {ANEW}")
    if checksum(message) != entry.checksum:
        raise PipelineError(
            f"{path}: granule {granule} is damaged: its checksum is not that of the index; {ANEW}"
        )
    return pa.py_buffer(message)
