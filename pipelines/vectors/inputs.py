"""Any table as Parquet files whose rows have stable positions.

Parquet files are read in place. Other formats are read once, into Parquet files beside the output,
so a second run sees the same rows. Overlapping inputs and outputs are refused: a job would read its
output, or delete its input.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StringType, StructField, StructType

from pipelines.catalog import FORMATS, TABLE_FORMATS
from pipelines.corpus.readers.formats import RFC_4180, Columns, Dialect, Format, Wanted
from pipelines.corpus.readers.inputs import find_files, place_of
from pipelines.corpus.readers.ranges import FileRange, probe, records_of
from pipelines.corpus.readers.rows import Record
from pipelines.corpus.readers.spark_reader import input_fingerprint, planned_splits
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.errors import InputError
from pipelines.files.folders import check_place
from pipelines.files.locations import Location, is_within, listed, location
from pipelines.settings import CorpusSettings, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import frame_from_json, write_parquet
from pipelines.vectors.parts import (
    Constants,
    InputFile,
    fixed_part,
    partition_columns,
    read_inputs,
    types_of_nulls,
)
from pipelines.vectors.table_job import STAGED, run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INPUTS = "embedding.inputs"
OUTPUT = "embedding.output"

_A_FILE = "part-00000-00000.parquet"

Files = tuple[list[InputFile], Mapping[Location, Constants]]
"""Footers of inputs, and the columns in the names of their folders."""


def check_no_overlap(
    settings: EmbeddingSettings, folder: Location, stores: StorageSettings = DEFAULT_STORES
) -> None:
    """Refuse inputs that overlap the output's folder, through links too.

    Raises:
        InputError: One is or will be within the other, or an input does not exist.
    """
    real = folder.resolve()
    within = InputError(OUTPUT, f"{folder} is within the inputs", "Name a folder beside them")
    for given in settings.inputs:
        path = _input_path(given, settings.format, stores)
        if path is not None and path.exists():
            if is_within(real, path.resolve()):
                raise within
            _check_outside([path], folder)
        elif path is not None and _would_find(path, fixed_part(given, stores), real):
            raise within
    if TABLE_FORMATS.load(settings.format).files is not None:
        _check_outside(_files(settings, stores), folder)


def check_outside(
    given: Sequence[str], kind: str | None, key: str, folder: Location, stores: StorageSettings
) -> None:
    """Refuse an output folder around an input.

    ``given`` are files, folders, globs, or names of tables, of the format ``kind`` (None for a
    plain file or folder). The setting ``key`` names ``folder``, which need not exist.

    Raises:
        InputError: An input is in the folder.
    """
    real = folder.resolve()
    for name in given:
        path = place_of(name, stores, key) if kind is None else _input_path(name, kind, stores)
        if path is None:
            continue
        base = fixed_part(str(path), stores) if glob.has_magic(str(path)) else path
        _check_outside([path if path.exists() else base], folder, key)
        # The folder may be inside the input, around some of its files.
        are_files = kind is not None and FORMATS.load(kind).files is not None
        if kind is not None and are_files and is_within(real, base.resolve()):
            _check_outside(find_files([name], kind, stores=stores), folder, key)


def _check_outside(files: Iterable[Location], folder: Location, key: str = OUTPUT) -> None:
    real = folder.resolve()
    inside = next((file for file in files if is_within(file.resolve(), real)), None)
    if inside is not None:
        raise InputError(key, f"{folder} holds the input {inside}", "Name a folder beside it")


def _input_path(given: str, kind: str, stores: StorageSettings) -> Location | None:
    """Return the path of an input, perhaps a glob; None for a table known by name only."""
    known: Format | None = TABLE_FORMATS.load(kind) if kind in TABLE_FORMATS else None
    if known is None or known.files is not None:
        return place_of(given, stores, INPUTS)
    return None if known.folder is None else known.folder(given)


def _would_find(pattern: Location, base: Location, real: Location) -> bool:
    """Return whether a glob matches the output's folder, one around it, or a file in it."""
    if not glob.has_magic(str(pattern)):
        return False
    wild = pattern.parts[len(base.parts) :]
    base = base.resolve()
    file = real / _A_FILE
    around = [path for path in (file, *file.parents) if is_within(path, base)]
    return any(_matches(path.parts[len(base.parts) :], wild) for path in around)


def _matches(parts: Sequence[str], wild: Sequence[str]) -> bool:
    if not wild:
        return not parts
    if wild[0] == "**":
        return any(_matches(parts[skipped:], wild[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wild[0]) and _matches(parts[1:], wild[1:])


def input_stamps(
    settings: EmbeddingSettings, stores: StorageSettings = DEFAULT_STORES
) -> dict[str, Any] | None:
    """Return values that change with the inputs; None for tables without a version.

    Raises:
        InputError: An input does not exist.
    """
    if not settings.inputs:
        raise InputError(INPUTS, "it is empty", f"Name the {settings.format} inputs to read")
    asked = CorpusSettings(
        inputs=settings.inputs,
        format=settings.format,
        pairs="single",
        follow_links=settings.follow_links,
    )
    dialect = Dialect.of(settings)
    try:
        fingerprint = input_fingerprint(asked, stores)
    except InputError as error:
        raise _renamed(error) from None
    # Stamps from before the dialect was a setting stay valid.
    if fingerprint is None or settings.format != "csv" or dialect == RFC_4180:
        return fingerprint
    return {**fingerprint, "csv": [dialect.separator, dialect.escape]}


def _files(settings: EmbeddingSettings, stores: StorageSettings) -> list[Location]:
    return find_files(
        settings.inputs, settings.format, INPUTS, stores, follow_links=settings.follow_links
    )


def parquet_inputs(
    settings: EmbeddingSettings, stores: StorageSettings = DEFAULT_STORES
) -> list[InputFile]:
    """Read the footers of the Parquet files of `embedding.inputs`, sorted by name.

    Raises:
        InputError: An input does not exist, or is no usable Parquet file.
    """
    return read_inputs(_files(settings, stores))


def table_files(
    session: SparkSession,
    settings: EmbeddingSettings,
    stores: StorageSettings,
    aside: Location,
    output: Location,
    output_key: str = OUTPUT,
) -> Files:
    """Return the input as Parquet files; write other formats into ``aside`` first.

    Raises:
        InputError: See :func:`stage_table`.
        PipelineError: Spark's job failed or stood still.
    """
    if settings.format == "parquet":
        files = parquet_inputs(settings, stores)
        named = partition_columns(settings.inputs, stores, follow_links=settings.follow_links)
        nulls = types_of_nulls(files, settings.text_column)
        return files, {file: (*named[file], *nulls[file]) for file in named}
    folder = aside / STAGED
    stage = partial(stage_table, session, settings, stores, folder, output, output_key)
    run_job(session, f"{output_key.partition('.')[0]}: reading the input", stage)
    return read_inputs(listed(folder, "part-*.parquet")), {}


def stage_table(
    session: SparkSession,
    settings: EmbeddingSettings,
    stores: StorageSettings,
    folder: Location,
    output: Location,
    output_key: str = OUTPUT,
) -> None:
    """Write the rows of inputs in other formats as Parquet files into a new folder.

    No table of the inputs may lie in ``output``, the folder of the setting ``output_key``.

    Raises:
        InputError: An input cannot be read, or there is no room for its rows.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    known: Format = TABLE_FORMATS.load(settings.format)
    try:
        if known.load is None:
            frame = _read_files(session, settings, stores)
        else:
            pinned = known.pinned(session, settings.inputs, stores) or settings.inputs
            frames = [known.load(session, given, stores) for given in pinned]
            frame = reduce(partial(type(frames[0]).unionByName, allowMissingColumns=True), frames)
            _check_outside(_local_files(frame), output)
        write_parquet(frame, folder)
    except InputError as error:
        raise _renamed(error) from None
    except (PySparkException, Py4JJavaError) as error:
        # A full disk is no fault of the input, and Spark's message does not mention it.
        check_place(output_key, output)
        names = ", ".join(settings.inputs)
        raise InputError(
            INPUTS,
            f"{names} cannot be read as {settings.format} ({spark_cause(error)})",
            "Repair the input, or set embedding.format",
        ) from None


def _local_files(frame: DataFrame) -> list[Path]:
    """Return the local files of a table; none for views that compute."""
    files = (name for name in frame.inputFiles() if name.startswith("file:/"))
    return [Path(unquote(urlsplit(name).path)) for name in files]


def _read_files(
    session: SparkSession, settings: EmbeddingSettings, stores: StorageSettings
) -> DataFrame:
    """Read rows with our own tasks, as JSON; Spark infers the types."""
    files = _files(settings, stores)
    columns, dialect = Columns((settings.text_column,)), Dialect.of(settings)
    wanted = Wanted(settings.format, columns, as_rows=True, stores=stores, dialect=dialect)
    names = _known_columns(files, wanted)
    schema = None
    if names is not None:
        schema = StructType([StructField(name, StringType()) for name in names])
    frame = frame_from_json(
        session,
        planned_splits(session, files, settings.format),
        partial(tasks_as_json, wanted=wanted),
        schema,
    )
    # A key of JSON may be empty, but no column of a Parquet file.
    return frame.toDF(*(name or f"_c{place}" for place, name in enumerate(frame.columns)))


def _known_columns(files: Sequence[Location], wanted: Wanted) -> tuple[str, ...] | None:
    """Return all columns of files with a header; None if only the rows can tell."""
    names: dict[str, None] = {}
    for file in files:
        try:
            probed = probe(file, wanted)
        except UnreadableError as error:
            problem = f"{file} cannot be read as {wanted.format} ({error.reason})"
            raise InputError(INPUTS, problem, "Repair it") from None
        if probed.form.header is None:
            return None if probed.form.columns else wanted.columns.names
        for name in probed.header:
            if probed.header.count(name) > 1:
                raise InputError(INPUTS, f"{file} has two columns `{name}`", "Rename one of them")
        names |= dict.fromkeys(probed.header)
    return tuple(names)


def tasks_as_json(tasks: Iterable[Iterable[FileRange]], *, wanted: Wanted) -> Iterator[str]:
    """Yield the rows of the splits of tasks. Runs on an executor; see :func:`rows_as_json`."""
    return rows_as_json(chain.from_iterable(tasks), wanted=wanted)


def rows_as_json(splits: Iterable[FileRange], *, wanted: Wanted) -> Iterator[str]:
    """Yield the rows of splits in their order, each as a JSON object. Runs on an executor.

    The readers are those of the corpus, with the same encodings, compressions and quoting. But an
    unreadable row ends the job: a table has all rows of its input, in its order.

    Raises:
        UnreadableError: A file or a row cannot be read.
    """
    for file, start, stop in splits:
        for found in records_of(location(file, wanted.stores), start, stop, wanted):
            if not isinstance(found, Record):
                continue
            if found.quarantined is not None:
                place = f" at byte {found.offset}" if found.offset else ""
                raise UnreadableError(f"{file}{place}: {found.quarantined}")
            (row,) = found.texts
            assert row is not None, "a row of a table is an object"
            yield row


def _renamed(error: InputError) -> InputError:
    """Return the corpus's error under the name of this setting."""
    return InputError(INPUTS, error.problem, error.remedy.replace("corpus.", "embedding."))
