"""The rows that units are, and what both kinds of units have in common. Runs on executors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import xxhash

from pipelines.corpus.cleaning.languages import identify, is_installed
from pipelines.corpus.cleaning.text_keys import SPARK_SEED
from pipelines.settings import CorpusSettings

SCHEMA = pa.schema(
    [
        ("level", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("anchor", pa.string()),
        ("positive", pa.string()),
        ("negatives", pa.list_(pa.string())),
        ("score", pa.string()),
        ("candidate_scores", pa.list_(pa.string())),
        ("group", pa.string()),
        ("anchor_key", pa.int64()),
        ("unit", pa.int64()),
        ("run", pa.int64()),
        ("place", pa.int64()),
        ("language", pa.string()),
        ("reason", pa.string()),
        ("quarantined", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("titled", pa.int64()),
        ("source", pa.int64()),
        ("key", pa.int64()),
    ]
)
"""`file` and `offset` only of what is quarantined; a text has its `place` in its `run`. `unit` and
`run` are hashes, since names as long as paths would cost more than the texts; `anchor_key` is what
:func:`.cleaning.text_keys.ascii_keys` gives, and null for whole rows; `titled` is 1 of a
document whose title stands for a question, and -1 of one where a piece of its text does; `source`
is the number of the input (:mod:`pipelines.corpus.kept_units.sources`), null where it is not kept;
`key` is the hash of the value in `corpus.key_column`, null where there is none."""

# One paragraph in so many is asked for its language where only the report wants to know.
_SAMPLED = 16


def hash_of(name: str) -> int:
    """The signed 64-bit hash that Spark's `xxhash64` gives for a string."""
    digest: int = xxhash.xxh64_intdigest(name.encode(), seed=SPARK_SEED)
    return digest - (1 << 64) if digest >= 1 << 63 else digest


def unit_batch(rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch of :data:`SCHEMA`; columns that are not given are null."""
    arrays = [columns.get(name, pa.nulls(rows, SCHEMA.field(name).type)) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def sampled_language(text: str) -> str | None:
    """The language of a text, of one text in so many; for the report."""
    asked = zlib.crc32(text.encode()) % _SAMPLED == 0 and is_installed()
    return identify(text) if asked else None


def shows_excerpts(settings: CorpusSettings) -> bool:
    """Whether texts are kept as examples of what is only counted: of these no key is known."""
    return settings.report_examples > 0 and settings.key_column is None


def carried_key(batch: pa.RecordBatch, settings: CorpusSettings) -> dict[str, pa.Array]:
    """The column `key` of raw rows whose keys have been hashed, where there are some."""
    return {} if settings.key_column is None else {"key": batch["key"]}
