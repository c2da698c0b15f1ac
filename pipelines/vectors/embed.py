"""Begins a table: what its parts are, which of them an earlier table has, and which vectors.

An input file that is as it was keeps its parts, which are linked from the earlier table. Rows of
other files are compared with those of that table by key (:mod:`pipelines.vectors.keys`), and the
vectors of equal texts are brought to the parts that want them
(:mod:`pipelines.vectors.keys`).

The embedding job: a table in, the same table with vectors out, part by part.

The plan of the parts is written first (:mod:`pipelines.vectors.embed`). An executor reads its
rows, embeds them, and writes the part, which appears as a whole. So a job that died leaves whole
parts, and the same command makes the others. At the end there is `_manifest.json`, and the table
takes its place (:mod:`pipelines.vectors.plan`). One job at a time writes into a folder
(:mod:`pipelines.files.locks`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.arrow_columns import is_key, is_read_by_spark, is_text
from pipelines.corpus.readers.inputs import has_columns
from pipelines.errors import InputError, PipelineError
from pipelines.files import storage, versions
from pipelines.files.copies import local_folder
from pipelines.files.folders import work_folder
from pipelines.files.locations import Location, RemotePath, listed
from pipelines.models.inference.backends import choose_backend
from pipelines.progress import activity
from pipelines.settings import Config, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.capacity import default_parallelism, task_threads
from pipelines.spark.session import running_tasks
from pipelines.tokens.start import DOCUMENT, read_prompts
from pipelines.vectors.column import backend_for, check_columns
from pipelines.vectors.embedding import SCALE_SUFFIX, Columns, EmbeddingOptions
from pipelines.vectors.inputs import parquet_inputs, stage_table
from pipelines.vectors.keys import compare_rows
from pipelines.vectors.making import make_parts, precision_of, run_job
from pipelines.vectors.merge import check_connector, merge_table
from pipelines.vectors.part_files import DeletedRows, read_deleted, write_deleted
from pipelines.vectors.parts import (
    Constants,
    InputFile,
    PartFooter,
    PartSize,
    RowRange,
    cut_file,
    in_threads,
    partition_columns,
    read_inputs,
    read_part_footer,
    types_of_nulls,
)
from pipelines.vectors.plan import (
    ATTEMPTS,
    INPUTS,
    KEPT,
    KEY_COLUMN,
    MANIFEST_FILE,
    PLAN_FILE,
    STAGED,
    Changes,
    Plan,
    Version,
    Work,
    beginning,
    begun_folders,
    choose_work,
    columns_of,
    has_same_files,
    identity_of,
    lock_file,
    missing_parts,
    options_of,
    other_vectors,
    output_folder,
    part_file,
    publish,
    write_plan,
)
from pipelines.vectors.store import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What a table is to follow from.

    Attributes:
        settings: The section ``embedding``.
        identity: See :func:`~pipelines.vectors.plan.identity_of`.
        options: With a backend and a precision that are not ``auto``.
        stores: How object stores are reached.
    """

    settings: EmbeddingSettings
    identity: Mapping[str, Any]
    options: EmbeddingOptions
    stores: StorageSettings = DEFAULT_STORES

    @property
    def columns(self) -> Columns:
        """Names of columns."""
        return columns_of(self.settings)


def check_job(config: Config) -> None:
    """Checks all that can be checked without Spark.

    Raises:
        InputError: See :func:`pipelines.vectors.embed.embed_table`.
    """
    settings, options, stores = config.embedding, options_of(config), config.storage
    identity = identity_of(settings, options, stores)
    folder = output_folder(settings, stores)
    choose_work(folder, identity, overwrite=settings.overwrite, stores=stores)
    if settings.format == "parquet":
        follow = settings.follow_links
        constants = partition_columns(settings.inputs, stores, follow_links=follow)
        _check_files(parquet_inputs(settings, stores), constants, settings, options)


def new_version(session: SparkSession, asked: Asked, work: Work) -> Version:
    """Begins a table: a folder with its plan, apart from what is there.

    Args:
        session: Reads inputs that are not Parquet, and compares keys.
        asked: What it is to follow from.
        work: What it may take over.

    Raises:
        InputError: The input cannot be used, or a key is missing or there twice.
        PipelineError: Spark could not compare keys.
    """
    home = output_folder(asked.settings, asked.stores)
    before = _usable(work.before, home, asked.identity)
    _clear_unplanned(home)
    with beginning(home) as begun:
        aside = begun.aside
        files, constants = _files(session, asked, aside, home)
        _check_files(files, constants, asked.settings, asked.options)
        if unknown := _unknown_to_spark(files):
            logger.warning(
                "embedding: Spark does not read a table with %s; pandas and pyarrow do", unknown
            )
        deleted = read_deleted(versions.current(home))
        if deleted is not None:
            _check_deletable(files, constants, deleted, home)
            write_deleted(aside, deleted)
        slots = default_parallelism(session)
        parts = _parts(files, constants, asked, before, work.build, slots)
        if not parts:
            raise InputError(INPUTS, "they hold no rows", "name a table that has some")
        parts, linked = _linked(parts, before, aside)
        changes = None
        if asked.identity[KEY_COLUMN] is not None:
            parts, changes = _compared(session, asked, before, parts, aside)
        final = tuple(replace(part, path=begun.final(part.path)) for part in parts)
        options = asked.options
        plan = Plan(
            dict(asked.identity), options.backend, options.precision, final, work.build, changes
        )
        write_plan(aside, plan)
    _tell(plan, linked)
    return Version(begun.folder, plan, is_whole=False)


def _clear_unplanned(folder: Location) -> None:
    """Removes what jobs have left in a store that were killed before they had a plan."""
    for place in begun_folders(folder):
        if isinstance(place, RemotePath) and not (place / PLAN_FILE).is_file():
            versions.clear(place)


def _usable(
    before: Sequence[Version], folder: Location, identity: Mapping[str, Any]
) -> tuple[Version, ...]:
    """The tables whose vectors are those that are wanted; says why where there are none."""
    other = {key: None for version in before for key in other_vectors(version, identity)}
    usable = tuple(version for version in before if not other_vectors(version, identity))
    if before and not usable:
        verb = "have" if len(other) > 1 else "has"
        logger.info(
            "embedding: %s %s changed since %s was made, so that all its rows are embedded again",
            ", ".join(other),
            verb,
            folder,
        )
    return usable


def _files(
    session: SparkSession, asked: Asked, aside: Location, output: Location
) -> tuple[list[InputFile], Mapping[Location, Constants]]:
    """The input as Parquet files, with the columns in the names of their folders."""
    settings, stores = asked.settings, asked.stores
    if settings.format == "parquet":
        files = parquet_inputs(settings, stores)
        follow = settings.follow_links
        named = partition_columns(settings.inputs, stores, follow_links=follow)
        nulls = types_of_nulls(files, settings.text_column)
        return files, {file: (*named[file], *nulls[file]) for file in named}
    stage = partial(stage_table, session, settings, stores, aside / STAGED, output)
    run_job(session, "embedding: reading the input", stage)
    return read_inputs(listed(aside / STAGED, "part-*.parquet")), {}


def _check_files(
    files: Sequence[InputFile],
    constants: Mapping[Location, Constants],
    settings: EmbeddingSettings,
    options: EmbeddingOptions,
) -> None:
    for file in files:
        named = {one.name: pa.type_for_alias(one.type) for one in constants.get(file.path, ())}
        types = named | file.types
        where = "the table" if file.path.parent.name == STAGED else str(file.path)
        texts = {name: is_text(kind) for name, kind in types.items()}
        check_columns(texts, columns_of(settings), options, where)
        _check_key(file.types, settings.key_column, where)
    if settings.merge_into is not None and (unknown := _unknown_to_spark(files)):
        raise InputError(
            "embedding.merge_into",
            f"Spark does not read {unknown} of the inputs",
            "leave them out, or write them as strings or numbers",
        )


def _check_deletable(
    files: Sequence[InputFile],
    constants: Mapping[Location, Constants],
    deleted: DeletedRows,
    output: Location,
) -> None:
    """Refuses files of which nobody could tell which rows were deleted."""
    for file in files:
        names = {*file.types, *(one.name for one in constants.get(file.path, ()))}
        if deleted.column not in names:
            raise InputError(
                INPUTS,
                f"rows were deleted from {output} by `{deleted.column}`, which {file.path} has not",
                "name inputs that have it, or another embedding.output",
            )


def _check_key(types: Mapping[str, pa.DataType], key: str | None, where: str) -> None:
    if key is None:
        return
    if key not in types:
        problem = f"{where} has no column `{key}`"
        raise InputError(KEY_COLUMN, problem, has_columns(types, "embedding"))
    if not is_key(types[key]):
        raise InputError(
            KEY_COLUMN,
            f"`{key}` of {where} holds {types[key]}",
            "name a column of whole numbers or strings",
        )


def _parts(
    files: Sequence[InputFile],
    constants: Mapping[Location, Constants],
    asked: Asked,
    before: Sequence[Version],
    build: int,
    slots: int,
) -> list[RowRange]:
    """All rows in parts: those of before of files that are as they were, others cut anew."""
    known: dict[Location, list[RowRange]] = {}
    for version in before:
        known = _parts_of_same_files(version, asked.identity) | known
    kept, others = [], []
    for file in files:
        parts = known.get(file.path, [])
        same = [part for part in parts if part.constants == constants.get(file.path, ())]
        if sum(part.rows for part in same) == file.rows:
            kept += same
        else:
            others.append(file)
    options, settings = asked.options, asked.settings
    vector_bytes = options.dimensions * 4 if options.quantise == "none" else options.dimensions + 4
    size = PartSize(settings.part_megabytes * 2**20, settings.part_rows, vector_bytes)
    size = size.shared(others, slots)
    for number, file in enumerate(others):
        name = f"part-{build:05d}-{number:05d}"
        kept += cut_file(file, size, name, constants.get(file.path, ()))
    # A row's position counts those of files before, by their names.
    return sorted(kept, key=lambda part: part.name)


def _parts_of_same_files(
    version: Version, identity: Mapping[str, Any]
) -> dict[Location, list[RowRange]]:
    """The parts of input files that have not changed since, by file."""
    known, stamps = (one[INPUTS][1] or {} for one in (version.plan.identity, identity))
    if not has_same_files(version, identity) or identity["embedding.format"] != "parquet":
        return {}
    before = {stamp[0]: stamp for stamp in known.get("files", ())}
    same = {stamp[0] for stamp in stamps["files"] if before.get(stamp[0]) == stamp}
    parts: dict[Location, list[RowRange]] = {}
    for part in version.plan.parts:
        if str(part.path) in same:
            file = part_file(version.folder, part)
            known_parts = parts.setdefault(part.path, [])
            known_parts.append(replace(part, reused=0, copied_from=file))
    return parts


def _linked(
    parts: Sequence[RowRange], before: Sequence[Version], aside: Location
) -> tuple[list[RowRange], int]:
    """Links the parts that an earlier table has; where links cannot be, executors have them copied.

    Returns:
        The parts, and how many need not be made.
    """
    lasting = {version.folder for version in before if version.is_whole}

    def link(part: RowRange) -> RowRange:
        if part.copied_from is None:
            return part
        # One that is not whole goes when this one has been begun, or is in its place.
        may_wait = part.copied_from.parent in lasting
        if not _link(part.copied_from, part_file(aside, part), may_wait=may_wait):
            return replace(part, copied_from=None)
        return replace(part, reused=part.rows)

    found = in_threads(link, parts)
    return found, sum(part.copied_from is not None for part in found)


def _link(file: Location, target: Location, *, may_wait: bool) -> bool:
    """Whether a part is there by another name, or can be copied to it later, if it may wait."""
    if may_wait and isinstance(file, RemotePath):
        return file.is_file()
    try:
        if isinstance(file, Path) and isinstance(target, Path):
            target.hardlink_to(file)
        elif isinstance(file, RemotePath) and isinstance(target, RemotePath):
            versions.copy_file(file, target)
    except OSError:
        return may_wait and file.is_file()
    return True


def _compared(
    session: SparkSession,
    asked: Asked,
    before: Sequence[Version],
    parts: Sequence[RowRange],
    aside: Location,
) -> tuple[list[RowRange], Changes | None]:
    """The parts with the number of rows that keep their vectors; these are in a folder then."""
    whole = next((version for version in before if version.is_whole), None)
    table = None if whole is None else open_table(whole.folder)
    compare = partial(compare_rows, session, parts, asked.settings, table, aside / KEPT)
    kept, changes = run_job(session, "embedding: comparing keys", compare)
    counted = [replace(part, reused=kept.get(part.name, part.reused)) for part in parts]
    return counted, changes if before else None


def _unknown_to_spark(files: Sequence[InputFile]) -> str:
    """The columns that keep Spark from reading a table; pandas and pyarrow read them."""
    found = {
        f"`{name}` ({kind})": None
        for file in files
        for name, kind in file.types.items()
        if not (is_read_by_spark(kind) or pa.types.is_null(kind))
    }
    return ", ".join(found)


def _tell(plan: Plan, linked: int) -> None:
    if plan.changes is not None:
        logger.info(
            "embedding: %s; %d of %d parts stay as they are", plan.changes, linked, len(plan.parts)
        )


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
