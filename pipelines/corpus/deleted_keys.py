"""The keys whose rows are to be in no corpus: a list in the prepared folder that only grows.

It holds hashes of the keys, so that it does not say who has asked for it. A preparation leaves
their rows out before anything is written, whatever the inputs still hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.corpus.unit_schema import hash_of
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.prepared_folder import PreparedFolder

DELETED = "deleted by its key"
_PERSONAL = ("title", "text_0", "text_1", "negatives", "group", "score", "candidate_scores")


@dataclass(frozen=True)
class _Listed:
    """All of the file.

    Attributes:
        column: Of the keys.
        keys: Their hashes, sorted.
    """

    column: str
    keys: tuple[int, ...]


def deleted_keys(prepared: PreparedFolder, column: str | None) -> tuple[int, ...]:
    """The hashes of all keys that were deleted, sorted.

    Args:
        prepared: Has the list, if anything was deleted.
        column: `corpus.key_column` as it is now.

    Raises:
        InputError: The keys are those of another column: their rows would come back.
        DamagedFileError: The file does not hold a list: they would come back too.
    """
    if not prepared.deleted_keys.is_file():
        return ()
    listed: _Listed = records.read(prepared.deleted_keys, _Listed)
    if column != listed.column:
        raise InputError(
            "corpus.key_column",
            f"rows were deleted by `{listed.column}` from {prepared.path} and would come back",
            "set it to that column, or name another prepared.folder",
        )
    return listed.keys


def add_deleted_keys(prepared: PreparedFolder, column: str, keys: Iterable[str]) -> int:
    """Adds keys to the list, for good.

    Returns:
        How many are in it now.

    Raises:
        InputError: Those that are in it are keys of another column.
    """
    found = tuple(sorted({*deleted_keys(prepared, column), *map(hash_of, keys)}))
    storage.write_json(prepared.deleted_keys, asdict(_Listed(column, found)), durable=True)
    return len(found)


def hashed_keys(keys: pa.Array) -> pa.Array:
    """Hashes of the keys of rows, as they stand in units. Runs on executors."""
    hashes = [None if key is None else hash_of(key) for key in keys.to_pylist()]
    return pa.array(hashes, pa.int64())


def mark_of(key: int) -> int:
    """Return what stands for a deleted key that has rows in the inputs.

    It is not the key's hash: of this hash no row is left, so none is looked for again.
    """
    return hash_of(f"deleted {key}")


def without_deleted(
    batch: pa.RecordBatch, deleted: Collection[int]
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Parts rows from those whose keys were deleted, of which nothing but counts is left.

    Runs on executors.

    Args:
        batch: Raw rows; their column `key` holds hashes.
        deleted: Hashes.

    Returns:
        The other rows, and those that are deleted, with marks for keys; None where there are none.
    """
    if not deleted:
        return batch, None
    wanted = pa.array(list(deleted), pa.int64())
    is_deleted = pc.is_in(batch["key"], wanted)
    if not pc.any(is_deleted).as_py():
        return batch, None
    gone = batch.filter(is_deleted)
    marks = pa.array(map(mark_of, gone["key"].to_pylist()), pa.int64())
    gone = gone.set_column(gone.schema.get_field_index("key"), "key", marks)
    for name in _PERSONAL:
        place = gone.schema.get_field_index(name)
        nothing = pa.nulls(gone.num_rows, gone.schema.field(place).type)
        gone = gone.set_column(place, name, nothing)
    reason = pa.array([DELETED] * gone.num_rows, pa.string())
    gone = gone.set_column(gone.schema.get_field_index("reason"), "reason", reason)
    return batch.filter(pc.invert(is_deleted)), gone
