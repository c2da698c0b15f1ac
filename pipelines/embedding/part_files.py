"""Makes the files of parts: rows are read, embedded and written. Runs on executors."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.executor import Columns, embed_batches
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.parts import RowRange, read_part
from pipelines.embedding.plan import ATTEMPTS, KEPT, part_file
from pipelines.embedding.vectors import SCALE_SUFFIX, KeptVectors
from pipelines.errors import PipelineError


def embed_parts(
    parts: Iterable[RowRange],
    *,
    folder: str,
    options: EmbeddingOptions,
    columns: Columns,
    attempts: str = ATTEMPTS,
) -> Iterator[int]:
    """Writes a file for each part; yields how many of its rows were embedded.

    A file is written under a name of this attempt and then gets its own, so that an attempt may
    fail, or run twice at a time.

    Args:
        parts: The rows.
        folder: Of the table.
        options: The model and what is done with its embeddings.
        columns: Names.
        attempts: Folder in it, of this job alone: what is left of a job that was killed has none.
    """
    # Arrow would start a thread for every core of the machine, and a task has only some.
    pa.set_cpu_count(options.threads)
    home = Path(folder)
    for part in parts:
        attempt = home / attempts / f"{part.name}.{uuid.uuid4().hex}"
        if part.copied_from is not None and Path(part.copied_from).is_file():
            shutil.copy2(part.copied_from, attempt)
            embedded = 0
        else:
            embedded = _make(part, home, attempt, options, columns)
        attempt.replace(part_file(home, part))
        yield embedded


def _make(
    part: RowRange, home: Path, path: Path, options: EmbeddingOptions, columns: Columns
) -> int:
    """Writes the file of a part; returns how many rows were embedded."""
    known = home / KEPT / f"{part.name}.parquet"
    quantised = options.quantise != "none"
    kept = (
        KeptVectors.read(known, options.dimensions, quantised=quantised)
        if known.is_file()
        else None
    )
    batches = embed_batches(read_part(part), options=options, columns=columns, kept=kept)
    rows = _write(path, batches, columns)
    if rows != part.rows:
        raise PipelineError(f"{part.path} has {rows} of the {part.rows} rows of {part.name}")
    return part.rows if kept is None else part.embedded


def _write(path: Path, batches: Iterator[pa.RecordBatch], columns: Columns) -> int:
    first = next(batches)
    # Values of vectors hardly repeat, so a dictionary would only cost space.
    vectors = (columns.vector, f"{columns.vector}{SCALE_SUFFIX}")
    others = [name for name in first.schema.names if name not in vectors]
    rows = int(first.num_rows)
    with pq.ParquetWriter(
        path, first.schema, compression="zstd", use_dictionary=others, write_statistics=others
    ) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
            rows += int(batch.num_rows)
    return rows
