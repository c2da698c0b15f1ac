"""The embedding job: a table in, the same table with vectors out, part by part.

The plan of the parts is written first (:mod:`pipelines.embedding.plan`). An executor reads its
rows, embeds them, and writes the part aside and renames it. So a job that died leaves whole parts,
and the same command makes the others. At the end there is `_manifest.json`. One job at a time
writes into a folder (:mod:`pipelines.files.locks`).
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.embedding.column import backend_for, task_threads
from pipelines.embedding.executor import Columns, embed_batches, task_device
from pipelines.embedding.options import EmbeddingOptions
from pipelines.embedding.parts import RowRange, read_part, tasks
from pipelines.embedding.plan import (
    ATTEMPTS,
    MANIFEST_FILE,
    STAGED,
    Plan,
    columns_of,
    identity_of,
    kept_plan,
    missing_parts,
    new_plan,
    options_of,
    output_folder,
    part_file,
)
from pipelines.embedding.progress import PartsProgress
from pipelines.embedding.vectors import SCALE_SUFFIX
from pipelines.errors import PipelineError
from pipelines.files import locks, storage
from pipelines.files.folders import work_folder
from pipelines.models.inference.embedder import choose_backend, choose_precision
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.spark.errors import executor_failures
from pipelines.spark.job_timeout import run_with_timeout
from pipelines.spark.session import running_tasks
from pipelines.tokens.prompts import DOCUMENT, read_prompts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


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
        text = f"{self.embedded} rows embedded, {rate:.0f} sentences/s ({self.seconds:.0f} s)"
        return text + (f", {kept} were there already" if kept else "")


def embed_table(session: SparkSession, config: Config) -> EmbeddingSummary:
    """Embeds the table of ``embedding.inputs`` into the folder ``embedding.output``.

    The output has all columns of the input, in its order, and behind them the vectors: lists of
    one size, float32 or int8. What is there of the same job is kept.

    Args:
        config: The section ``embedding``; its model is ``<run.folder>/model`` unless named.

    Raises:
        InputError: Model, input or column cannot be used, or the folder holds another table or is
            being written.
        PipelineError: Spark's job failed or stood still; what is done is kept.
    """
    settings = config.embedding
    options = options_of(
        config, task_threads(session), backend=backend_for(session, settings.backend)
    )
    columns, folder = columns_of(settings), output_folder(settings)
    identity = identity_of(settings, options)
    with work_folder("embedding.output", folder, "embed", lock_file(folder)):
        plan = kept_plan(folder, identity, overwrite=settings.overwrite)
        if plan is None:
            with activity("embedding", "planning the parts", running_tasks):
                options = replace(options, precision=_precision(session, options))
                _tell_of_prompts(options)
                plan = new_plan(session, settings, folder, identity, columns, options)
        # What an unfinished table was begun with, whatever `auto` would be now.
        options = replace(options, backend=choose_backend(plan.backend), precision=plan.precision)
        missing = missing_parts(folder, plan)
        began = time.monotonic()
        if missing:
            make = partial(embed_parts, folder=str(folder), options=options, columns=columns)
            with PartsProgress(folder, plan.parts):
                _make(session, folder, tasks(missing, settings.part_rows), make)
        summary = _finish(folder, plan, missing, options, columns, time.monotonic() - began)
    logger.info("embedding: %s", summary)
    return summary


def _tell_of_prompts(options: EmbeddingOptions) -> None:
    """Logs a hint if the model has a prompt for documents, and these texts get another one."""
    prompts = read_prompts(Path(options.model))
    document = prompts.before(DOCUMENT)
    if options.prompt_name is None and document and document != prompts.before():
        logger.info(
            "the model reads documents after `%s`: for these texts to be found by queries, set "
            "embedding.prompt_name=document",
            document,
        )


def lock_file(folder: Path) -> Path:
    """The lock of a table stands beside its folder, which is replaced as a whole."""
    real = folder.resolve()
    return real.parent / f".{real.name}{locks.LOCK_FILE}"


def _precision(session: SparkSession, options: EmbeddingOptions) -> str:
    """The precision of the whole table, which an executor knows where it is ``auto``."""
    if options.precision != "auto":
        return options.precision
    ask = partial(_precision_here, options=options)
    found = session.sparkContext.parallelize([0], 1).mapPartitions(ask)
    return str(_run(session, "embedding: which precision", found.collect, lambda: None)[0])


def _precision_here(_: Iterator[int], *, options: EmbeddingOptions) -> Iterator[str]:
    """Runs on an executor."""
    yield choose_precision(options.precision, task_device(options.backend))


def embed_parts(
    parts: Iterable[RowRange],
    *,
    folder: str,
    options: EmbeddingOptions,
    columns: Columns,
    attempts: str = ATTEMPTS,
) -> Iterator[int]:
    """Writes a file for each part; yields its rows. Runs on an executor.

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
    for part in parts:
        embedded = embed_batches(read_part(part), options=options, columns=columns)
        attempt = Path(folder, attempts, f"{part.name}.{uuid.uuid4().hex}")
        rows = _write(attempt, embedded, columns)
        if rows != part.rows:
            raise PipelineError(f"{part.path} has {rows} of the {part.rows} rows of {part.name}")
        attempt.replace(part_file(Path(folder), part))
        yield rows


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


def _make(
    session: SparkSession,
    folder: Path,
    planned: Sequence[Sequence[RowRange]],
    make: Callable[..., Iterator[int]],
) -> None:
    """Runs the tasks on the executors.

    Raises:
        PipelineError: See :func:`_run`, or another job took this one for gone.
    """
    # Of attempts that were killed.
    shutil.rmtree(folder / ATTEMPTS, ignore_errors=True)
    attempts = folder / ATTEMPTS / uuid.uuid4().hex
    attempts.mkdir(parents=True)

    held = locks.held_here()

    def state() -> object:
        for lock in held:
            lock.check()
        return _sizes(attempts)

    work = partial(_work_on_tasks, work=partial(make, attempts=str(attempts.relative_to(folder))))
    listed = session.sparkContext.parallelize(planned, len(planned))
    _run(session, "embedding", listed.mapPartitions(work).count, state)


def _run(
    session: SparkSession, name: str, act: Callable[[], Value], state: Callable[[], object]
) -> Value:
    """Has Spark do a job.

    Raises:
        PipelineError: A task failed as often as Spark tries, or nothing moved any more.
    """
    with executor_failures(name, "; what is done is kept, and the same command makes the rest"):
        return run_with_timeout(session.sparkContext, name, act, state)


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files that tasks are writing."""
    sizes = {}
    for file in folder.iterdir():
        # A part that is done has been renamed in the meantime.
        with contextlib.suppress(FileNotFoundError):
            sizes[file.name] = file.stat().st_size
    return sizes


def _work_on_tasks(
    planned: Iterator[Sequence[RowRange]], *, work: Callable[..., Iterator[int]]
) -> Iterator[int]:
    """Runs on an executor."""
    return (rows for parts in planned for rows in work(parts))


def _finish(
    folder: Path,
    plan: Plan,
    made: Sequence[RowRange],
    options: EmbeddingOptions,
    columns: Columns,
    seconds: float,
) -> EmbeddingSummary:
    """Checks every part, writes the manifest, and removes temporary files."""
    rows = texts = 0
    for part in plan.parts:
        file = part_file(folder, part)
        footer = pq.read_metadata(file)
        if footer.num_rows != part.rows:
            raise PipelineError(f"{file} has {footer.num_rows} rows of {part.rows}")
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
                "backend": plan.backend,
                "precision": plan.precision,
                "parts": {part.name: part.rows for part in plan.parts},
                "settings": dict(plan.identity),
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
