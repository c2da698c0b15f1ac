"""Rows that were deleted from a table of vectors by their keys, and that stay out of it.

The keys are listed in the table's folder, as hashes. Whatever the inputs still hold, no part is
written with such rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.corpus.unit_rows import hash_of, hashed_keys
from pipelines.embedding.parts import RowRange, read_rows
from pipelines.embedding.plan import DELETED_FILE
from pipelines.files import records, storage
from pipelines.files.locations import Location, arrow_source


@dataclass(frozen=True)
class DeletedRows:
    """Which rows are in no table.

    Attributes:
        column: Of the keys.
        keys: Their hashes, sorted.
    """

    column: str
    keys: tuple[int, ...]

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that stay. Runs on an executor."""
        return batch.filter(pc.invert(self._are_deleted(batch.column(self.column))))

    def count(self, part: RowRange) -> int:
        """How many rows of a part are deleted. Runs on an executor."""
        if self.column in pq.read_schema(arrow_source(part.path)).names:
            return self.count_in(part.path, part.start, part.stop)
        value = next(one.value for one in part.constants if one.name == self.column)
        return part.rows if value is not None and hash_of(value) in self.keys else 0

    def count_in(self, path: Location, start: int, stop: int) -> int:
        """How many rows of a range of a file are deleted. Runs on an executor."""
        return sum(
            pc.sum(self._are_deleted(batch.column(self.column))).as_py() or 0
            for batch in read_rows(path, start, stop, [self.column])
        )

    def _are_deleted(self, keys: pa.Array) -> pa.Array:
        return pc.is_in(hashed_keys(_key_texts(keys)), value_set=pa.array(self.keys, pa.int64()))


def _key_texts(keys: pa.Array) -> pa.Array:
    """Keys as Spark has them as texts: `delete` hashes them so in the corpus."""
    if not pa.types.is_floating(keys.type):
        return as_text(keys)
    values = keys.to_numpy(zero_copy_only=False)
    texts = [_number_text(value) for value in values]
    return pa.array(texts, pa.string(), mask=keys.is_null().to_numpy(zero_copy_only=False))


def _number_text(value: np.floating[Any]) -> str:
    """A number as Java writes it. A column of whole numbers with a null is often one of floats."""
    if not np.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, trim="0")
    digits, _, exponent = np.format_float_scientific(value, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"


def read_deleted(folder: Location) -> DeletedRows | None:
    """What is deleted from the table in a folder, if anything is."""
    path = folder / DELETED_FILE
    if not path.is_file():
        return None
    known: DeletedRows = records.read(path, DeletedRows)
    return known


def write_deleted(folder: Location, deleted: DeletedRows) -> None:
    """Lists what is to stay out of the table in a folder."""
    storage.write_json(folder / DELETED_FILE, asdict(deleted))
