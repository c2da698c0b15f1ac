"""What two texts share that count as the same: letters, marks and digits, in lower case.

The key is Spark's `xxhash64` of them. Spark finds it for any text, with a regular expression that
costs more than all else that is done to a sentence there; Python finds it for whole columns at
once where texts are ASCII, in which nothing depends on a version of Unicode.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pipelines.corpus.cleaning.text_bytes import counts_before, table_of, text_bytes

if TYPE_CHECKING:
    from pyspark.sql import Column

SPARK_SEED = 42
"""Of Spark's `xxhash64`."""

_OF_WORDS = r"[\p{L}\p{M}\p{N}]"
_OTHERS = r"[^\p{L}\p{M}\p{N}]"
_ALPHABET = (string.ascii_letters + string.digits).encode()
_DELETED = bytes({*range(256)} - {*_ALPHABET})
_LOWER = bytes(range(256)).lower()
_IS_KEPT = table_of(_ALPHABET)


def text_key(text: Column, known: Column | None = None) -> Column:
    """The key of a text, an `xxhash64`; null gives null.

    A text without any letter, mark or digit is its own key.

    Args:
        text: Of any characters.
        known: Of :func:`ascii_keys`, where they have been found.
    """
    from pyspark.sql import functions as F  # noqa: N812

    lower = F.lower(text)
    # Asked first, and not whether any letter is left: Spark would take them out once more.
    letters = F.when(lower.rlike(_OF_WORDS), F.regexp_replace(lower, _OTHERS, "")).otherwise(text)
    key = F.xxhash64(letters)
    return F.when(text.isNotNull(), key if known is None else F.coalesce(known, key))


def ascii_keys(texts: pa.StringArray) -> pa.Int64Array:
    """The keys of the texts that are ASCII; null for all others. Runs on an executor."""
    data, bounds = text_bytes(texts)
    letters = data.translate(_LOWER, _DELETED)
    before = counts_before(data, bounds, _IS_KEPT)
    digests = [
        xxhash.xxh64_intdigest(letters[begin:end] or data[first:last], SPARK_SEED)
        for begin, end, first, last in zip(
            before[:-1].tolist(),
            before[1:].tolist(),
            bounds[:-1].tolist(),
            bounds[1:].tolist(),
            strict=True,
        )
    ]
    keys = pa.array(np.array(digests, np.uint64).view(np.int64))
    return pc.if_else(pc.fill_null(pc.string_is_ascii(texts), False), keys, None)
