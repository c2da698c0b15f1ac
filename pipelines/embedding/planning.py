"""Begins a table: what its parts are, which of them an earlier table has, and which vectors.

An input file that is as it was keeps its parts, which are linked from the earlier table. Rows of
other files are compared with those of that table by key (:mod:`pipelines.embedding.keys`), and the
vectors of equal texts are brought to the parts that want them
(:mod:`pipelines.embedding.keys`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.arrow_columns import is_key, is_read_by_spark, is_text
from pipelines.corpus.readers.inputs import has_columns
from pipelines.embedding.column import check_columns
from pipelines.embedding.executor import Columns, EmbeddingOptions
from pipelines.embedding.inputs import parquet_inputs, stage_table
from pipelines.embedding.keys import compare_rows
from pipelines.embedding.making import run_job
from pipelines.embedding.part_files import DeletedRows, read_deleted, write_deleted
from pipelines.embedding.partitions import (
    Constants,
    InputFile,
    in_threads,
    partition_columns,
    read_inputs,
    types_of_nulls,
)
from pipelines.embedding.parts import PartSize, RowRange, cut_file
from pipelines.embedding.plan import (
    INPUTS,
    KEPT,
    KEY_COLUMN,
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
    options_of,
    other_vectors,
    output_folder,
    part_file,
    write_plan,
)
from pipelines.embedding.store import open_table
from pipelines.errors import InputError
from pipelines.files import versions
from pipelines.files.locations import Location, RemotePath, listed
from pipelines.settings import Config, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.capacity import default_parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """What a table is to follow from.

    Attributes:
        settings: The section ``embedding``.
        identity: See :func:`~pipelines.embedding.plan.identity_of`.
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
        InputError: See :func:`pipelines.embedding.table.embed_table`.
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
