"""Makes the files of parts: rows are read, embedded and written. Runs on executors.

Rows that were deleted from a table of vectors by their keys, and that stay out of it.

The keys are listed in the table's folder, as hashes. Whatever the inputs still hold, no part is
written with such rows.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.arrow_columns import as_text
from pipelines.corpus.unit_rows import hash_of, hashed_keys
from pipelines.errors import PipelineError
from pipelines.files import records, storage, versions
from pipelines.files.locations import Location, RemotePath, arrow_source
from pipelines.vectors.embedding import (
    SCALE_SUFFIX,
    Columns,
    EmbeddingOptions,
    KeptVectors,
    embed_batches,
)
from pipelines.vectors.parts import LEFT_OUT, PART_ID, RowRange, read_part, read_rows
from pipelines.vectors.plan import ATTEMPTS, DELETED_FILE, KEPT, part_file


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


SIGN_SECONDS = 30.0
"""After which a part that is made for a store gives a sign of life again."""


def embed_parts(
    parts: Iterable[RowRange],
    *,
    folder: Location,
    options: EmbeddingOptions,
    columns: Columns,
    attempts: str = ATTEMPTS,
    deleted: DeletedRows | None = None,
) -> Iterator[int]:
    """Writes a file for each part; yields how many of its rows were embedded.

    A file appears as a whole: on a file system it is written under a name of this attempt and then
    gets its own, for a store it is written on this machine. So an attempt may fail, or run twice
    at a time.

    Args:
        parts: The rows.
        folder: Of the table.
        options: The model and what is done with its embeddings.
        columns: Names.
        attempts: Folder in it, of this job alone: what is left of a job that was killed has none.
        deleted: Rows that are left out.
    """
    # Arrow would start a thread for every core of the machine, and a task has only some.
    pa.set_cpu_count(options.threads)
    for part in parts:
        attempt = folder / attempts / f"{part.name}.{uuid.uuid4().hex}"
        yield (
            0
            if _copied(part, folder, attempt)
            else _made(part, folder, attempt, options, columns, deleted)
        )


def _copied(part: RowRange, folder: Location, attempt: Location) -> bool:
    """Whether an earlier table has the file of a part, which is copied then."""
    source, target = part.copied_from, part_file(folder, part)
    if source is None or not source.is_file():
        return False
    if isinstance(source, RemotePath) and isinstance(target, RemotePath):
        versions.copy_file(source, target)
        return True
    with _written(target, attempt) as path:
        shutil.copy2(str(source), path)
    return True


def _made(
    part: RowRange,
    folder: Location,
    attempt: Location,
    options: EmbeddingOptions,
    columns: Columns,
    deleted: DeletedRows | None,
) -> int:
    """Writes the file of a part; returns how many rows were embedded."""
    known = folder / KEPT / f"{part.name}.parquet"
    quantised = options.quantise != "none"
    kept = (
        KeptVectors.read(known, options.dimensions, quantised=quantised)
        if known.is_file()
        else None
    )
    batches = embed_batches(read_part(part), options=options, columns=columns, kept=kept)
    if isinstance(attempt, RemotePath):
        batches = _with_signs(batches, attempt)
    left_out = 0
    if deleted is not None:
        left_out = deleted.count(part)
        # Behind the vectors, since those that are kept are known by the places of rows.
        batches = map(deleted.without, batches)
    with _written(part_file(folder, part), attempt) as path:
        rows = write_part(path, batches, columns, left_out) + left_out
        if rows != part.rows:
            raise PipelineError(f"{part.path} has {rows} of the {part.rows} rows of {part.name}")
    if isinstance(attempt, RemotePath):
        attempt.unlink(missing_ok=True)
    return (part.rows if kept is None else part.embedded) - left_out


@contextmanager
def _written(file: Location, attempt: Location) -> Iterator[Path]:
    """Yields a file of this machine that becomes that of a part when the block ends well."""
    if isinstance(file, Path) and isinstance(attempt, Path):
        yield attempt
        attempt.replace(file)
    else:
        with storage.built_file(file) as made:
            yield made


def _with_signs(batches: Iterator[pa.RecordBatch], sign: RemotePath) -> Iterator[pa.RecordBatch]:
    """The same; meanwhile a file changes every so often, since nobody else sees the part grow."""
    versions.put_bytes(sign, b"0")
    told, rows = time.monotonic(), 0
    for batch in batches:
        rows += batch.num_rows
        if time.monotonic() - told > SIGN_SECONDS:
            versions.put_bytes(sign, str(rows).encode())
            told = time.monotonic()
        yield batch


def write_part(
    path: Path, batches: Iterator[pa.RecordBatch], columns: Columns, left_out: int = 0
) -> int:
    """Writes rows with vectors as the file of a part; returns how many. Runs on an executor.

    Args:
        path: The file.
        batches: One at least, which may be empty.
        columns: Names.
        left_out: Rows that are not among them; stands in the footer.
    """
    first = next(batches)
    # Values of vectors hardly repeat, so a dictionary would only cost space.
    vectors = (columns.vector, f"{columns.vector}{SCALE_SUFFIX}")
    others = [name for name in first.schema.names if name not in vectors]
    rows = 0
    own = {PART_ID: uuid.uuid4().hex, LEFT_OUT: str(left_out)}
    metadata = {**(first.schema.metadata or {}), **own}
    schema = first.schema.with_metadata(metadata)
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=others,
        write_statistics=others,
        write_page_checksum=True,
    ) as writer:
        for batch in chain([first], batches):
            if batch.num_rows:
                writer.write_batch(batch)
                rows += int(batch.num_rows)
    return rows
