"""Makes the files of parts: rows are read, embedded and written. Runs on executors."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.deleted_rows import DeletedRows
from pipelines.embedding.executor import Columns, embed_batches
from pipelines.embedding.footers import LEFT_OUT, PART_ID
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.parts import RowRange, read_part
from pipelines.embedding.plan import ATTEMPTS, KEPT, part_file
from pipelines.embedding.vectors import SCALE_SUFFIX, KeptVectors
from pipelines.errors import PipelineError
from pipelines.files import storage, versions
from pipelines.files.locations import Location, RemotePath

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
