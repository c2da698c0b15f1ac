"""The embedding job: a table in, the same table with vectors out, part by part.

The plan of the parts is written first (:mod:`pipelines.embedding.planning`). An executor reads its
rows, embeds them, and writes the part, which appears as a whole. So a job that died leaves whole
parts, and the same command makes the others. At the end there is `_manifest.json`, and the table
takes its place (:mod:`pipelines.embedding.plan`). One job at a time writes into a folder
(:mod:`pipelines.files.locks`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.embedding.column import backend_for
from pipelines.embedding.executor import SCALE_SUFFIX, Columns, EmbeddingOptions
from pipelines.embedding.making import make_parts, precision_of
from pipelines.embedding.merge import check_connector, merge_table
from pipelines.embedding.partitions import PartFooter, in_threads, read_part_footer
from pipelines.embedding.parts import RowRange
from pipelines.embedding.plan import (
    ATTEMPTS,
    KEPT,
    KEY_COLUMN,
    MANIFEST_FILE,
    STAGED,
    Version,
    Work,
    choose_work,
    columns_of,
    identity_of,
    lock_file,
    missing_parts,
    options_of,
    other_vectors,
    output_folder,
    part_file,
    publish,
)
from pipelines.embedding.planning import Asked, new_version
from pipelines.errors import PipelineError
from pipelines.files import storage, versions
from pipelines.files.copies import local_folder
from pipelines.files.folders import work_folder
from pipelines.files.locations import Location
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.settings import Config
from pipelines.spark.capacity import task_threads
from pipelines.spark.session import running_tasks
from pipelines.tokens.start import DOCUMENT, read_prompts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EmbeddingSummary:
    """What a job did.

    Attributes:
        folder: The table; in a store the version of it that is the current one.
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
            return f"nothing to embed, all {self.rows} rows are there"
        rate = self.embedded / max(self.seconds, 1e-9)
        text = f"{self.embedded} rows embedded, {rate:.0f} sentences/s ({self.seconds:.0f} s)"
        return text + (f", {kept} were there already" if kept else "")


def embed_table(session: SparkSession, config: Config) -> EmbeddingSummary:
    """Embeds the table of ``embedding.inputs`` into the folder ``embedding.output``.

    The output has all columns of the input and behind them the vectors: lists of one size, float32
    or int8. What is there of the same job is kept, and with ``embedding.key_column`` what is there
    of an earlier one. A new table takes the place of another when it is whole.

    Args:
        config: The section ``embedding``; its model is ``<run.folder>/model`` unless named.

    Raises:
        InputError: Model, input, column or key cannot be used, or the folder holds another table
            or is being written.
        PipelineError: Spark's job failed or stood still; what is done is kept.
    """
    settings = config.embedding
    options = options_of(
        config, task_threads(session), backend=backend_for(session, settings.backend)
    )
    folder = output_folder(settings, config.storage)
    identity = identity_of(settings, options, config.storage)
    with work_folder("embedding.output", folder, "embed", lock_file(folder)):
        storage.settle(folder)
        check_connector(session, settings)
        work = choose_work(folder, identity, overwrite=settings.overwrite, stores=config.storage)
        version = work.goes_on
        if version is None:
            with activity("embedding", "planning the parts", running_tasks):
                options = _as_before(session, options, work, identity)
                _tell_of_prompts(options)
                _tell_of_scales(options, settings.output_column)
                asked = Asked(settings, identity, options, config.storage)
                version = new_version(session, asked, work)
        plan = version.plan
        # What an unfinished table was begun with, whatever `auto` would be now.
        options = replace(options, backend=choose_backend(plan.backend), precision=plan.precision)
        began = time.monotonic()
        missing = missing_parts(version)
        embedded = make_parts(
            session, version.folder, plan.parts, missing, options, columns_of(settings)
        )
        summary = _finish(version, options, columns_of(settings), embedded, began)
        publish(version, folder)
        logger.info("embedding: %s", summary)
        whole = versions.current(folder)
        merge_table(session, settings, whole)
    return replace(summary, folder=str(whole))


def _as_before(
    session: SparkSession, options: EmbeddingOptions, work: Work, identity: Mapping[str, Any]
) -> EmbeddingOptions:
    """The options with a backend and a precision: those of vectors that may be kept, if any."""
    for version in work.before:
        if not other_vectors(version, identity):
            plan = version.plan
            return replace(options, backend=plan.backend, precision=plan.precision)
    return replace(options, precision=precision_of(session, options))


def _tell_of_prompts(options: EmbeddingOptions) -> None:
    """Logs a hint if the model has a prompt for documents, and these texts get another one."""
    prompts = read_prompts(local_folder(options.model))
    document = prompts.before(DOCUMENT)
    if options.prompt_name is None and document and document != prompts.before():
        logger.info(
            "the model reads documents after `%s`: for these texts to be found by queries, set "
            "embedding.prompt_name=document",
            document,
        )


def _tell_of_scales(options: EmbeddingOptions, vector: str) -> None:
    """Logs what int8 vectors can be compared by, since other systems know nothing of scales."""
    if options.quantise != "none":
        logger.info(
            "embedding: int8 vectors are right under cosine similarity alone: for inner products "
            "and distances multiply each by its `%s%s`",
            vector,
            SCALE_SUFFIX,
        )


def _finish(
    version: Version, options: EmbeddingOptions, columns: Columns, embedded: int, began: float
) -> EmbeddingSummary:
    """Checks every part, writes the manifest, and removes temporary files."""
    folder, plan = version.folder, version.plan
    footers = in_threads(partial(_footer, folder=folder, column=columns.text), plan.parts)
    summary = EmbeddingSummary(
        folder=str(folder),
        rows=sum(footer.rows for footer in footers),
        texts=sum(footer.texts for footer in footers),
        embedded=embedded,
        seconds=round(time.monotonic() - began, 2),
        dimensions=options.dimensions,
    )
    quantised = options.quantise != "none"
    if embedded or not version.is_whole:
        storage.write_json(
            folder / MANIFEST_FILE,
            {
                "rows": summary.rows,
                "texts": summary.texts,
                "left_out": sum(footer.left_out for footer in footers),
                "text_column": columns.text,
                "key_column": plan.identity.get(KEY_COLUMN),
                "vector_column": columns.vector,
                "scale_column": f"{columns.vector}{SCALE_SUFFIX}" if quantised else None,
                "dimensions": options.dimensions,
                "type": "int8" if quantised else "float32",
                # Of the vectors as they are stored; None: any that the model was trained for.
                "compare_by": "cosine" if quantised else None,
                "normalised": options.normalise,
                "model": str(options.model),
                "backend": plan.backend,
                "precision": plan.precision,
                "build": plan.build,
                "changes": plan.changes and asdict(plan.changes),
                "parts": {
                    part.name: footer.rows for part, footer in zip(plan.parts, footers, strict=True)
                },
                "settings": dict(plan.identity),
                "last_run": {"rows": summary.embedded, "seconds": summary.seconds},
            },
        )
    for name in (STAGED, ATTEMPTS, KEPT):
        storage.discard_folder(folder / name)
    return summary


def _footer(part: RowRange, *, folder: Location, column: str) -> PartFooter:
    """The footer of a part.

    Raises:
        PipelineError: Its file was not made of all of its rows.
    """
    file = part_file(folder, part)
    footer = read_part_footer(file, column)
    if not footer.covers(part.rows):
        raise PipelineError(f"{file} has {footer.rows} rows of {part.rows}")
    return footer
