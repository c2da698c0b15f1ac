"""The embedding job: a table in, the same table with vectors out, part by part.

The plan of the parts is written first (:mod:`pipelines.embedding.plan`). An executor reads its
rows, embeds them, and writes the part aside and renames it. So a job that died leaves whole parts,
and the same command makes the others. At the end there is `_manifest.json`.
"""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import storage
from pipelines.embedding.column import backend_for, task_threads
from pipelines.embedding.executor import Columns, embed_batches
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.parts import Part, read_rows, tasks
from pipelines.embedding.plan import (
    ATTEMPTS,
    MANIFEST_FILE,
    STAGED,
    columns_of,
    identity_of,
    open_folder,
    options_of,
    output_folder,
    planned_parts,
)
from pipelines.embedding.progress import PartsProgress
from pipelines.embedding.vectors import SCALE_SUFFIX
from pipelines.errors import PipelineError
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddingSummary:
    """What a job did.

    Attributes:
        folder: The table.
        rows: Of the whole table.
        texts: Of those, rows with a text.
        embedded: Rows that this run embedded.
        seconds: That it took for these.
        dimensions: Of a vector.
    """

    folder: str
    rows: int
    texts: int
    embedded: int
    seconds: float
    dimensions: int

    def __str__(self) -> str:
        kept = self.rows - self.embedded
        if not self.embedded:
            return f"nothing to do, all {self.rows} rows are there"
        rate = self.embedded / max(self.seconds, 1e-9)
        told = f"{self.embedded} rows embedded, {rate:.0f} sentences/s ({self.seconds:.0f} s)"
        return told + (f", {kept} were there already" if kept else "")


def embed_table(session: SparkSession, config: Config) -> EmbeddingSummary:
    """Embeds the table of ``embedding.inputs`` into the folder ``embedding.output``.

    The output has all columns of the input, in its order, and behind them the vectors: lists of
    one size, float32 or int8. What is there of the same job is kept.

    Args:
        session: The Spark session.
        config: The section ``embedding``; its model is ``<run.folder>/model`` unless named.

    Raises:
        InputError: Model, input or column cannot be used, or the folder holds another table.
        PipelineError: Spark's job failed; what is done is kept.
    """
    settings = config.embedding
    options = options_of(
        config, task_threads(session), backend=backend_for(session, settings.backend)
    )
    columns, folder = columns_of(settings), output_folder(settings)
    identity = identity_of(settings, options)
    open_folder(folder, identity, overwrite=settings.overwrite)
    parts = planned_parts(session, settings, folder, identity, columns, options)
    missing = [part for part in parts if not _file(folder, part).is_file()]
    began = time.monotonic()
    if missing:
        # Of attempts that were killed.
        shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir()
        work = partial(embed_parts, folder=str(folder), options=options, columns=columns)
        with PartsProgress(folder, parts):
            _run(session, tasks(missing, settings.part_rows), work)
    seconds = time.monotonic() - began
    summary = _finish(folder, parts, missing, options, columns, identity, seconds)
    logger.info("embedding: %s", summary)
    return summary


def embed_parts(
    parts: Iterable[Part], *, folder: str, options: EmbeddingOptions, columns: Columns
) -> Iterator[int]:
    """Writes a file for each part; yields its rows. Runs on an executor.

    A file is written under a name of this attempt and then gets its own, so that an attempt may
    fail, or run twice at a time.
    """
    # One task has its cores; Arrow would start a thread for every core of the machine.
    pa.set_cpu_count(options.threads)
    for part in parts:
        batches = read_rows(part.path, part.start, part.stop)
        embedded = embed_batches(batches, options=options, columns=columns)
        attempt = Path(folder, ATTEMPTS, f"{part.name}.{uuid.uuid4().hex}")
        rows = _write(attempt, embedded, columns)
        if rows != part.rows:
            raise PipelineError(f"{part.path} has {rows} of the {part.rows} rows of {part.name}")
        attempt.replace(Path(folder, f"{part.name}.parquet"))
        yield rows


def _write(path: Path, batches: Iterator[pa.RecordBatch], columns: Columns) -> int:
    first = next(batches)
    # Vectors have no values in common that a dictionary could hold.
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


def _run(session: SparkSession, planned: Sequence[Sequence[Part]], work: Any) -> None:
    """Has executors do the tasks.

    Raises:
        PipelineError: One failed as often as Spark tries.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    listed = session.sparkContext.parallelize(planned, len(planned))
    try:
        listed.mapPartitions(partial(_work_on_tasks, work=work)).count()
    except Py4JJavaError as error:
        raise PipelineError(
            f"embedding failed on an executor: {_python_error(error)}; what is done is kept, and "
            "the same command makes the rest"
        ) from error


def _work_on_tasks(planned: Iterator[Sequence[Part]], *, work: Any) -> Iterator[int]:
    """Runs on an executor."""
    return (rows for parts in planned for rows in work(parts))


def _python_error(error: Any) -> str:
    """The last line of the executor's traceback, or what Spark says."""
    lines = [line.strip() for line in str(error.java_exception.getMessage()).splitlines()]
    before_java = lines[: next((n for n, line in enumerate(lines) if line == ""), len(lines))]
    return next(line for line in reversed(before_java or lines) if line)


def _file(folder: Path, part: Part) -> Path:
    return folder / f"{part.name}.parquet"


def _finish(
    folder: Path,
    parts: Sequence[Part],
    made: Sequence[Part],
    options: EmbeddingOptions,
    columns: Columns,
    identity: Mapping[str, Any],
    seconds: float,
) -> EmbeddingSummary:
    """Looks at every part, writes the manifest, and removes what was for the work only."""
    rows = texts = 0
    for part in parts:
        footer = pq.read_metadata(_file(folder, part))
        if footer.num_rows != part.rows:
            raise PipelineError(f"{_file(folder, part)} has {footer.num_rows} rows of {part.rows}")
        rows += footer.num_rows
        texts += footer.num_rows - _nulls(footer, columns.text)
    summary = EmbeddingSummary(
        folder=str(folder),
        rows=rows,
        texts=texts,
        embedded=sum(part.rows for part in made),
        seconds=round(seconds, 2),
        dimensions=options.dimensions,
    )
    quantised = options.quantise != "none"
    if made or not (folder / MANIFEST_FILE).is_file():
        storage.write_json(
            folder / MANIFEST_FILE,
            {
                "rows": rows,
                "texts": texts,
                "text_column": columns.text,
                "vector_column": columns.vector,
                "scale_column": f"{columns.vector}{SCALE_SUFFIX}" if quantised else None,
                "dimensions": options.dimensions,
                "type": "int8" if quantised else "float32",
                "normalised": options.normalise,
                "model": options.model,
                "parts": {part.name: part.rows for part in parts},
                "settings": dict(identity),
                "last_run": {"rows": summary.embedded, "seconds": summary.seconds},
            },
        )
    for name in (STAGED, ATTEMPTS):
        shutil.rmtree(folder / name, ignore_errors=True)
    return summary


def _nulls(footer: pq.FileMetaData, column: str) -> int:
    place = next(n for n in range(footer.num_columns) if footer.schema.column(n).path == column)
    groups = (footer.row_group(n).column(place) for n in range(footer.num_row_groups))
    return sum(int(group.statistics.null_count) for group in groups)
