"""Cuts a column of text at ASCII white space and punctuation, with a few passes over its bytes.

BERT's normaliser and pre-tokenizer work character by character, apart from the decomposition of
a character with the marks behind it. White space and punctuation of ASCII are taken apart from
what surrounds them in any case, and in UTF-8 their bytes occur in no other character. So a text
may be cut there before it is normalised: the words of the chunks, one after the other, are the
words of the text. A chunk therefore needs to be looked at once, however often it occurs.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WHITE_SPACE = b" \t\n\r"
"""What begins a chunk; the rarer white space is left to the library, inside a chunk."""

SLICE_BYTES = 8 * 2**20
"""Text that is cut at a time; the arrays for it take some twenty times as much memory."""

_SPACE, _PUNCTUATION = 2, 1
_LOWER = bytes(range(256)).translate(
    bytes.maketrans(string.ascii_uppercase.encode(), string.ascii_lowercase.encode())
)


def _class_table() -> bytes:
    classes = bytearray(256)
    for byte in WHITE_SPACE:
        classes[byte] = _SPACE
    for byte in string.punctuation.encode():
        classes[byte] = _PUNCTUATION
    return bytes(classes)


_CLASSES = _class_table()


@dataclass(frozen=True)
class Chunks:
    """The chunks of a column of texts, each distinct one kept once.

    Attributes:
        distinct: Binary array of the distinct chunks: at most one byte of white space, then a
            run of other bytes without ASCII punctuation, or one byte of it.
        numbers: int32 [chunks]; which distinct chunk stands at each place.
        rows: int64 [texts + 1]; the places of the first chunk of each text, and the end.
    """

    distinct: pa.BinaryArray
    numbers: np.ndarray
    rows: np.ndarray


def slices(texts: pa.StringArray) -> Iterator[pa.StringArray]:
    """Cuts a column into runs of rows of about :data:`SLICE_BYTES`, one row at the least."""
    offsets = _offsets(texts)
    first = 0
    while first < len(texts):
        last = int(np.searchsorted(offsets, offsets[first] + SLICE_BYTES, side="right")) - 1
        last = max(last, first + 1)
        yield texts.slice(first, last - first)
        first = last


def text_bytes(texts: pa.StringArray) -> bytes:
    """The bytes of all texts in a row."""
    offsets = _offsets(texts)
    buffer = texts.buffers()[2]
    if buffer is None:
        return b""
    whole: bytes = buffer.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()
    return whole


def split(texts: pa.StringArray, *, lowercase: bool) -> Chunks:
    """Cuts texts into chunks.

    Args:
        texts: A string array; a null counts as an empty text.
        lowercase: Lower-case ASCII letters, for a normaliser that would do so.
    """
    texts = pc.fill_null(texts, "")
    data = text_bytes(texts)
    if lowercase:
        data = data.translate(_LOWER)
    offsets = _offsets(texts).astype(np.int64)
    offsets -= offsets[0]
    starts = np.flatnonzero(_begins_chunk(data, offsets))
    bounds = np.append(starts, len(data)).astype(np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    encoded = pa.Array.from_buffers(pa.binary(), len(starts), buffers).dictionary_encode()
    return Chunks(
        distinct=encoded.dictionary,
        numbers=encoded.indices.to_numpy(),
        rows=np.searchsorted(starts, offsets),
    )


def plain_word(chunk: bytes) -> str | None:
    """The chunk's word if it is all ASCII letters and digits; None if it is anything else.

    Normaliser and pre-tokenizer have nothing to do with such a word, apart from lower-casing.
    """
    word = chunk.strip(WHITE_SPACE)
    return word.decode() if word.isalnum() else None


def _begins_chunk(data: bytes, offsets: np.ndarray) -> np.ndarray:
    """Whether a chunk begins at each byte, as bool [bytes]."""
    classes = np.frombuffer(data.translate(_CLASSES), np.uint8)
    space = (classes >> 1).view(np.bool_)
    punctuation = (classes & _PUNCTUATION).view(np.bool_)
    begins = space | punctuation
    # Punctuation joins the white space before it, and ends its chunk.
    begins[1:] &= ~space[:-1] | space[1:]
    begins[1:] |= punctuation[:-1]
    begins[offsets[offsets < len(data)]] = True
    return begins


def _offsets(texts: pa.StringArray) -> np.ndarray:
    """Where each text begins in the buffer, and the end of the last, as int32 [texts + 1]."""
    if not len(texts):
        return np.zeros(1, np.int32)
    return np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
