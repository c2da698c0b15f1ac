"""Files of parts: rows are read, embedded and written. Runs on executors."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.locations import Location, as_local
from pipelines.vectors.embedding import Columns, EmbeddingOptions, KeptVectors, embed_batches
from pipelines.vectors.parts import RowRange, read_part, write_part
from pipelines.vectors.row_deletion import DeletedRows
from pipelines.vectors.table_job import ATTEMPTS, KEPT, life_signs


def embed_parts(
    parts: Iterable[RowRange],
    *,
    folder: Location,
    options: EmbeddingOptions,
    columns: Columns,
    attempts: Location | None = None,
    deleted: DeletedRows | None = None,
) -> Iterator[int]:
    """Write a file for each part, without ``deleted`` rows; yield the number of its embedded rows.

    Files appear atomically, so an attempt may fail, or run twice at a time. ``attempts`` holds
    files being written; by default `_attempts` in the table's folder.
    """
    # Arrow would start a thread for every core of the machine; a task has only a few.
    pa.set_cpu_count(options.threads)
    attempts = attempts or folder / ATTEMPTS
    for part in parts:
        target = folder / f"{part.name}.parquet"
        if _is_copied(part, target, attempts):
            yield 0
            continue
        known = folder / KEPT / f"{part.name}.parquet"
        kept = KeptVectors.read(known, options) if known.is_file() else None
        batches = embed_batches(read_part(part), options=options, columns=columns, kept=kept)
        sign = attempts / f"{part.name}.{uuid.uuid4().hex}"
        if not storage.can_grow(sign):
            batches = _with_signs(batches, sign)
        left_out = 0
        if deleted is not None:
            left_out = deleted.count(part)
            # After embedding, since kept vectors are known by the places of their rows.
            batches = map(deleted.without, batches)
        with storage.built_file(target, aside_in=attempts) as path:
            rows = write_part(path, batches, columns.stored, left_out) + left_out
            if rows != part.rows:
                written = f"{rows} of the {part.rows} rows of {part.name}"
                raise PipelineError(f"{part.path} has {written}")
        sign.unlink(missing_ok=True)
        yield (part.rows if kept is None else part.embedded) - left_out


def _is_copied(part: RowRange, target: Location, attempts: Location) -> bool:
    """Copy the part's file from an earlier table, and return whether there is one."""
    source = part.copied_from
    if source is None or not source.is_file():
        return False
    if as_local(source) is None:
        storage.copy_file(source, target)
        return True
    with storage.built_file(target, aside_in=attempts) as path:
        shutil.copy2(str(source), path)
    return True


def _with_signs(batches: Iterator[pa.RecordBatch], sign: Location) -> Iterator[pa.RecordBatch]:
    """Yield the same batches; change a file now and then, as nobody else sees the part grow."""
    get_on = life_signs(sign)
    for batch in batches:
        get_on()
        yield batch
