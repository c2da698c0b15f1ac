"""The inputs of any format as a Spark DataFrame of raw rows of one shape; runs on the driver.

Python reads files of text on the executors, a range of a file or several files a task
(:mod:`.readers.ranges`). Spark reads Parquet and tables (:mod:`.readers.parquet`,
:mod:`.readers.tables`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

from pipelines.catalog import FORMATS
from pipelines.corpus.readers import parquet
from pipelines.corpus.readers.formats import (
    RFC_4180,
    Columns,
    Damaged,
    Dialect,
    Format,
    Wanted,
)
from pipelines.corpus.readers.inputs import (
    COLUMNS,
    INPUTS,
    Names,
    columns_of,
    find_files,
    format_of,
    has_columns,
    named_columns,
    nothing_readable,
    stamp_of,
    suffixes_of,
    text_of,
)
from pipelines.corpus.readers.ranges import (
    FileRange,
    column_problem,
    pack,
    probe,
    read_tasks,
    split_file,
)
from pipelines.corpus.readers.rows import ROW_DDL
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.settings import CorpusSettings, StorageSettings
from pipelines.settings.corpus import column_of
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.frames import read_columns
from pipelines.spark.tasks import frame_from_tasks

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def read_rows(
    session: SparkSession,
    settings: CorpusSettings,
    stores: StorageSettings = DEFAULT_STORES,
    damaged: Damaged = MappingProxyType({}),
) -> DataFrame:
    """Return the raw rows of `corpus.inputs`; see :data:`.rows.ROW_SCHEMA`.

    It reads only first bytes and footers. Unreadable data later becomes a row with its reason in
    `quarantined`.

    Raises:
        InputError: An input or a column is missing, no file is readable, or the settings do not fit
            the format.
    """
    check_settings(settings)
    known: Format = FORMATS.load(settings.format)
    if known.read is not None:
        return known.read(session, settings, stores)
    follow = settings.follow_links
    files = find_files(settings.inputs, settings.format, stores=stores, follow_links=follow)
    return read_files(session, settings, files, files, stores, damaged)


def check_settings(settings: CorpusSettings) -> None:
    """Refuse settings unfit for the format; the error names the setting."""
    if settings.score_column is not None and settings.pairs != "columns":
        raise InputError(
            "corpus.score_column", f"`{settings.pairs}` makes pairs without scores", "Leave it out"
        )
    known: Format = FORMATS.load(settings.format)
    inputs = f"{settings.format} files" if known.files else settings.format
    if known.pairs is not None and settings.pairs not in known.pairs:
        remedy = f"Choose one of {', '.join(known.pairs)}, or another corpus.format"
        raise InputError("corpus.pairs", f"{inputs} cannot give `{settings.pairs}`", remedy)
    columns = {
        "corpus.group_column": settings.group_column,
        "corpus.key_column": settings.key_column,
    }
    for key, column in columns.items():
        if column and not known.columns:
            raise InputError(key, f"{inputs} have no columns", "Leave it out")


def read_files(
    session: SparkSession,
    settings: CorpusSettings,
    files: Sequence[Location],
    read: Sequence[Location],
    stores: StorageSettings = DEFAULT_STORES,
    damaged: Damaged = MappingProxyType({}),
) -> DataFrame:
    """Return the raw rows of the files `read`, of a format of files.

    At least one of all inputs, `files`, must be readable, or there is an `InputError`. The
    `damaged` ones go to the quarantine: Spark cannot read them to their ends.
    """
    known: Format = FORMATS.load(settings.format)
    if known.read_files is not None:
        return known.read_files(session, settings, files, read, damaged)
    wanted = Wanted(
        settings.format,
        columns_of(settings) if known.columns else Columns(("text",)),
        record=settings.max_record_megabytes << 20,
        multiline=settings.csv_multiline,
        stores=stores,
        dialect=Dialect.of(settings),
    )
    _check_some_readable(files, wanted, named_columns(settings) if known.columns else [])
    return _read(session, read, wanted)


def without_damaged(
    session: SparkSession,
    settings: CorpusSettings,
    files: Sequence[Location],
    act: Callable[[Damaged], Result],
) -> Result:
    """Have Spark read files with `act`; if it fails, once more without the damaged files.

    Errors of Spark with another reason pass.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    find = FORMATS.load(settings.format).find_damaged
    try:
        return act({})
    except (Py4JError, PySparkException):
        columns = [name for _, name in named_columns(settings)]
        damaged = {} if find is None else find(session, files, columns)
        if not damaged:
            raise
    for file, problem in damaged.items():
        logger.warning("%s cannot be read: %s", file, problem)
    return act(damaged)


@contextmanager
def damage_named(
    session: SparkSession, key: str, files: Sequence[Location], columns: Sequence[str]
) -> Iterator[None]:
    """Name the damaged Parquet file in an `InputError` if Spark fails to read it in the block."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException):
        named = [file for file in files if format_of(file) == "parquet"]
        for file, problem in parquet.find_damaged(session, named, columns).items():
            raise InputError(key, f"{file} cannot be read ({problem})", "Repair it") from None
        raise


def _read(session: SparkSession, files: Sequence[Location], wanted: Wanted) -> DataFrame:
    tasks = planned_splits(session, files, wanted.format, multiline=wanted.multiline)
    return frame_from_tasks(session, tasks, partial(read_tasks, wanted=wanted), ROW_DDL)


def planned_splits(
    session: SparkSession, files: Sequence[Location], kind: str, *, multiline: bool = True
) -> list[list[FileRange]]:
    """Return the splits of files of a format, in their order: a list for each task."""
    splits = [split for file in files for split in split_file(file, kind, multiline=multiline)]
    tasks = pack(splits, default_parallelism(session))
    logger.info("reading %d files in %d tasks", len(files), len(tasks))
    return [[(split.file, split.start, split.stop) for split in task] for task in tasks]


def _check_some_readable(files: Iterable[Location], wanted: Wanted, names: Names) -> None:
    """Look at first bytes until one file is readable; refuse inputs without one."""
    first: tuple[Location, str] | None = None
    known: list[tuple[Location, Sequence[str]]] = []
    for file in files:
        try:
            columns = shown_columns(file, wanted)
        except UnreadableError as error:
            first = first or (file, error.reason)
            continue
        # Without columns to compare, the tasks judge the file.
        if columns is None:
            return
        problem = column_problem((column_of(name, columns) for _, name in names), columns)
        if problem is None:
            return
        first = first or (file, problem)
        known.append((file, columns))
    if first is not None:
        raise nothing_readable(first, known, names)


def shown_columns(file: Location, wanted: Wanted) -> tuple[str, ...] | None:
    """Return the columns in the first bytes of a file; None if they show none.

    Raises:
        UnreadableError: The file lacks its columns, or is unreadable.
    """
    probed = probe(file, wanted)
    return probed.form.columns(probed) if probed.form.columns else None


def texts_of(
    session: SparkSession,
    inputs: Sequence[str],
    columns: Sequence[str],
    key: str,
    stores: StorageSettings = DEFAULT_STORES,
    dialect: Dialect = RFC_4180,
    *,
    follow_links: bool = False,
) -> DataFrame:
    """Return the texts of Parquet, CSV and JSON lines files: one column `text`, nulls left out.

    Other files than Parquet are read once more first; an `InputError` names the unreadable place. A
    file may lack some of `columns`, not all. `key` is the setting of the inputs, `<key>_columns`
    the setting of columns.
    """
    texts = [
        frame
        for file in find_files(inputs, COLUMNS, key, stores, follow_links=follow_links)
        for frame in _texts_of_file(session, file, columns, key, stores, dialect)
    ]
    return reduce(DataFrame.unionByName, texts).where("text is not null")


def _texts_of_file(
    session: SparkSession,
    file: Location,
    columns: Sequence[str],
    key: str,
    stores: StorageSettings,
    dialect: Dialect,
) -> Iterator[DataFrame]:
    kind, existing = columns_in(file, key, dialect)
    wanted = [name for name in columns if name in existing]
    if not wanted:
        missing = " or ".join(f"`{name}`" for name in columns)
        section = key.partition(".")[0]
        remedy = has_columns(existing, section) if existing else "Name files that hold text"
        raise InputError(f"{key}_columns", f"{file} has no column {missing}", remedy)
    if FORMATS.load(kind).form is None:
        (footer,) = parquet.read_footers([file])
        problem = footer.problem_with(wanted)
        problem = problem or parquet.find_damaged(session, [file], wanted).get(file)
        if problem is not None:
            raise InputError(key, f"{file} cannot be read ({problem})", "Repair it")
        for name in wanted:
            frame = read_columns(session, [file], [column_of(name, existing)])
            yield frame.select(text_of(name, existing).alias("text"))
        return
    for name in wanted:
        wants = Wanted(kind, Columns((name,)), stores=stores, dialect=dialect)
        rows = _read(session, [file], wants)
        first = rows.where("quarantined is not null").orderBy("offset").first()
        if first is not None:
            place = f"{first['file']} at byte {first['offset']}"
            raise InputError(key, f"{place} cannot be read ({first['quarantined']})", "Repair it")
        yield rows.select(F.col("text_0").alias("text"))


def columns_in(
    file: Location, key: str, dialect: Dialect = RFC_4180
) -> tuple[str, tuple[str, ...]]:
    """Return the format of a file and its columns, in CSV and JSON of its first row.

    An unreadable file, or a name without a known format, is an `InputError`.
    """
    kind = format_of(file)
    if kind is None:
        remedy = f"Give it one of the endings {suffixes_of(COLUMNS)}"
        raise InputError(key, f"the name of {file} shows no format", remedy)
    if FORMATS.load(kind).form is None:
        (footer,) = parquet.read_footers([file])
        problem, columns = footer.problem, tuple(footer.types)
    else:
        problem, columns = None, ()
        try:
            columns = shown_columns(file, Wanted(kind, Columns(()), dialect=dialect)) or ()
        except UnreadableError as error:
            problem = error.reason
    if problem is not None:
        raise InputError(key, f"{file} cannot be read ({problem})", "Repair it")
    return kind, columns


def input_fingerprint(
    settings: CorpusSettings, stores: StorageSettings = DEFAULT_STORES
) -> dict[str, Any] | None:
    """Return a value in JSON that changes with the inputs: stamps of files, versions of tables.

    None for an unknown version: of a table with only a name. A missing input is an `InputError`.
    """

    def stamps(inputs: Sequence[str], kind: str, key: str = INPUTS) -> list[list[str | int]]:
        files = find_files(inputs, kind, key, stores, follow_links=settings.follow_links)
        return [stamp_of(file) for file in files]

    fingerprint = FORMATS.load(settings.format).fingerprint
    if fingerprint is None:
        versions: dict[str, Any] | None = {"files": stamps(settings.inputs, settings.format)}
    else:
        versions = fingerprint(settings.inputs, stores)
    if versions is None or not settings.exclude:
        return versions
    return {**versions, "exclude": stamps(settings.exclude, COLUMNS, "corpus.exclude")}
