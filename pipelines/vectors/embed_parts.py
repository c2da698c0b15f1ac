"""Makes the files of parts: rows are read, embedded and written. Runs on executors."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipelines.errors import PipelineError
from pipelines.files import storage, versions
from pipelines.files.locations import Location, RemotePath
from pipelines.vectors.embedding import Columns, EmbeddingOptions, KeptVectors, embed_batches
from pipelines.vectors.parts import RowRange, read_part, write_part
from pipelines.vectors.row_deletion import DeletedRows
from pipelines.vectors.table_job import ATTEMPTS, KEPT, link

SIGN_SECONDS = 30.0
"""After which a part that is made for a store gives a sign of life again."""


def embed_parts(
    parts: Iterable[RowRange],
    *,
    folder: Location,
    options: EmbeddingOptions,
    columns: Columns,
    attempts: Location | None = None,
    deleted: DeletedRows | None = None,
) -> Iterator[int]:
    """Write a file for each part; yield how many of its rows were embedded.

    A file appears as a whole: on a file system it is written under a name of this attempt and then
    gets its own, for a store it is written on this machine. So an attempt may fail, or run twice
    at a time.

    Args:
        parts: The rows.
        folder: Of the table.
        options: The model and what is done with its embeddings.
        columns: Names.
        attempts: Folder for what is being written; `_attempts` in that of the table unless given.
        deleted: Rows that are left out.
    """
    # Arrow would start a thread for every core of the machine, and a task has only some.
    pa.set_cpu_count(options.threads)
    for part in parts:
        target = folder / f"{part.name}.parquet"
        attempt = (attempts or folder / ATTEMPTS) / f"{part.name}.{uuid.uuid4().hex}"
        if _copied(part, target, attempt):
            yield 0
            continue
        known = folder / KEPT / f"{part.name}.parquet"
        kept = KeptVectors.read(known, options) if known.is_file() else None
        yield _made(part, target, attempt, options, columns, kept, deleted)


def _copied(part: RowRange, target: Location, attempt: Location) -> bool:
    """Copy the file of a part that an earlier table has."""
    source = part.copied_from
    if source is None or not source.is_file():
        return False
    if isinstance(source, RemotePath):
        link(source, target)
        return True
    with _written(target, attempt) as path:
        shutil.copy2(source, path)
    return True


def _made(
    part: RowRange,
    target: Location,
    attempt: Location,
    options: EmbeddingOptions,
    columns: Columns,
    kept: KeptVectors | None,
    deleted: DeletedRows | None,
) -> int:
    """Write the file of a part; return how many rows were embedded."""
    batches = embed_batches(read_part(part), options=options, columns=columns, kept=kept)
    if isinstance(attempt, RemotePath):
        batches = _with_signs(batches, attempt)
    left_out = 0
    if deleted is not None:
        left_out = deleted.count(part)
        # Behind the vectors, since those that are kept are known by the places of rows.
        batches = map(deleted.without, batches)
    with _written(target, attempt) as path:
        rows = write_part(path, batches, columns.stored, left_out) + left_out
        if rows != part.rows:
            raise PipelineError(f"{part.path} has {rows} of the {part.rows} rows of {part.name}")
    if isinstance(attempt, RemotePath):
        attempt.unlink(missing_ok=True)
    return (part.rows if kept is None else part.embedded) - left_out


@contextmanager
def _written(file: Location, attempt: Location) -> Iterator[Path]:
    """Yield a file of this machine that becomes that of a part when the block ends well."""
    if isinstance(file, Path) and isinstance(attempt, Path):
        yield attempt
        attempt.replace(file)
    else:
        with storage.built_file(file) as made:
            yield made


def _with_signs(batches: Iterator[pa.RecordBatch], sign: RemotePath) -> Iterator[pa.RecordBatch]:
    """Yield the same, and change a file now and then, since nobody else sees the part grow."""
    versions.put_bytes(sign, b"0")
    told, rows = time.monotonic(), 0
    for batch in batches:
        rows += batch.num_rows
        if time.monotonic() - told > SIGN_SECONDS:
            versions.put_bytes(sign, str(rows).encode())
            told = time.monotonic()
        yield batch
