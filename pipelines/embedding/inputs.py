"""Any table as Parquet files whose rows have a place that stays.

Parquet files are read where they are. All other formats are read once, into Parquet files beside
the output, so that what a second run finds is what the first one saw.

Refuses inputs and outputs that overlap.

Otherwise a job would read what it writes, or delete what it reads.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StringType, StructField, StructType

from pipelines.catalog import FORMATS, TABLE_FORMATS
from pipelines.corpus.readers.formats import RFC_4180, Columns, Dialect, Format, Wanted
from pipelines.corpus.readers.inputs import find_files, place_of
from pipelines.corpus.readers.ranges import probe
from pipelines.corpus.readers.spark_reader import input_fingerprint, planned_splits
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.corpus.readers.tables import delta_folder
from pipelines.embedding.partitions import InputFile, fixed_part, read_inputs, tasks_as_json
from pipelines.errors import InputError
from pipelines.files.folders import check_place
from pipelines.files.locations import Location, is_within
from pipelines.settings import CorpusSettings, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import frame_from_json, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


INPUTS = "embedding.inputs"
OUTPUT = "embedding.output"

_A_FILE = "part-00000-00000.parquet"


def check_no_overlap(
    settings: EmbeddingSettings, folder: Location, stores: StorageSettings = DEFAULT_STORES
) -> None:
    """Compares the inputs with the output's folder, whatever links lead to them.

    Args:
        settings: The inputs.
        folder: Of the output.
        stores: How object stores are reached.

    Raises:
        InputError: One is within the other, or will be, or an input is not there.
    """
    real = folder.resolve()
    for given in settings.inputs:
        path = _input_path(given, settings.format, stores)
        if path is not None and path.exists():
            if is_within(real, path.resolve()):
                raise _within(folder)
            _check_outside([path], real, folder)
        elif path is not None and _would_find(path, fixed_part(given, stores), real):
            raise _within(folder)
    if TABLE_FORMATS.load(settings.format).files is not None:
        follow = settings.follow_links
        files = find_files(settings.inputs, settings.format, INPUTS, stores, follow_links=follow)
        _check_outside(files, real, folder)


def check_files_outside(files: Iterable[Location], folder: Location) -> None:
    """Makes sure that none of the files is in the output's folder.

    Raises:
        InputError: One is.
    """
    _check_outside(files, folder.resolve(), folder)


def check_outside(
    given: Sequence[str], kind: str | None, key: str, folder: Location, stores: StorageSettings
) -> None:
    """Makes sure that a job does not write into a folder around what it reads.

    Args:
        given: Files, folders, globs, or names of tables.
        kind: The format of inputs; None of what is a file or a folder itself.
        key: The setting that names the folder.
        folder: Need not be there.
        stores: How object stores are reached.

    Raises:
        InputError: Something that is read is in the folder.
    """
    real = folder.resolve()
    for name in given:
        path = place_of(name, stores, key) if kind is None else _corpus_path(name, kind, stores)
        if path is None:
            continue
        base = fixed_part(str(path), stores) if glob.has_magic(str(path)) else path
        _check_outside([path if path.exists() else base], real, folder, key)
        # A folder around it may have files in it.
        are_files = kind is not None and FORMATS.load(kind).files is not None
        if kind is not None and are_files and is_within(real, base.resolve()):
            _check_outside(find_files([name], kind, stores=stores), real, folder, key)


def _check_outside(
    files: Iterable[Location], real: Location, folder: Location, key: str = OUTPUT
) -> None:
    inside = next((file for file in files if is_within(file.resolve(), real)), None)
    if inside is not None:
        raise InputError(key, f"{folder} holds the input {inside}", "name a folder beside it")


def _within(folder: Location) -> InputError:
    return InputError(OUTPUT, f"{folder} is within the inputs", "name a folder beside them")


def _input_path(given: str, kind: str, stores: StorageSettings) -> Location | None:
    """The path of an input, perhaps a glob; None for a table that is known by name only."""
    if kind == "delta":
        return delta_folder(given)
    by_name = TABLE_FORMATS.load(kind).files is None
    return None if by_name else place_of(given, stores, INPUTS)


def _corpus_path(given: str, kind: str, stores: StorageSettings) -> Location | None:
    """The path of an input of any format; None for a table that is known by name only."""
    if kind in TABLE_FORMATS:
        return _input_path(given, kind, stores)
    return place_of(given, stores, INPUTS)


def _would_find(pattern: Location, base: Location, real: Location) -> bool:
    """Whether a glob means the output's folder, one around it, or a file in it."""
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


KEY = "embedding.inputs"


def input_stamps(
    settings: EmbeddingSettings, stores: StorageSettings = DEFAULT_STORES
) -> dict[str, Any] | None:
    """What changes when the inputs do; None of tables that have no version.

    Raises:
        InputError: An input is not there.
    """
    if not settings.inputs:
        raise InputError(KEY, "it is empty", f"name the {settings.format} inputs to read")
    asked = CorpusSettings(
        inputs=settings.inputs,
        format=settings.format,
        pairs="single",
        follow_links=settings.follow_links,
    )
    dialect = Dialect.of(settings)
    try:
        told = input_fingerprint(asked, stores)
    except InputError as error:
        raise _renamed(error) from None
    if told is None or settings.format != "csv" or dialect == RFC_4180:
        return told
    return {**told, "csv": [dialect.separator, dialect.escape]}


def parquet_inputs(
    settings: EmbeddingSettings, stores: StorageSettings = DEFAULT_STORES
) -> list[InputFile]:
    """The footers of the files of `embedding.inputs`, by their names.

    Raises:
        InputError: One is not there, or is no Parquet file that can be used.
    """
    follow = settings.follow_links
    return read_inputs(find_files(settings.inputs, "parquet", KEY, stores, follow_links=follow))


def stage_table(
    session: SparkSession,
    settings: EmbeddingSettings,
    stores: StorageSettings,
    folder: Location,
    output: Location,
    output_key: str = "embedding.output",
) -> None:
    """Writes the rows of inputs that are no Parquet files as such.

    Args:
        session: Has them read.
        settings: Name them.
        stores: How object stores are reached.
        folder: Is made.
        output: Of the job, where no table of the inputs may lie.
        output_key: The setting that names it.

    Raises:
        InputError: An input cannot be read, or there is no room for its rows.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        if TABLE_FORMATS.load(settings.format).load is None:
            frame = _read_files(session, settings, stores)
        else:
            frame = _read_tables(session, settings)
            check_files_outside(_local_files(frame), output)
        write_parquet(frame, folder)
    except InputError as error:
        raise _renamed(error) from None
    except (PySparkException, Py4JJavaError) as error:
        # A disk that is full is no fault of the input, and Spark's message does not tell.
        check_place(output_key, output)
        names = ", ".join(settings.inputs)
        raise InputError(
            KEY,
            f"{names} cannot be read as {settings.format} ({spark_cause(error)})",
            "mend the input, or set embedding.format",
        ) from None


def _local_files(frame: DataFrame) -> list[Path]:
    """Files of a table on a file system; of views that compute there are none."""
    files = (name for name in frame.inputFiles() if name.startswith("file:/"))
    return [Path(unquote(urlsplit(name).path)) for name in files]


def _read_files(
    session: SparkSession, settings: EmbeddingSettings, stores: StorageSettings
) -> DataFrame:
    """Rows that tasks of ours read: JSON on its way to Spark, which finds the types."""
    files = find_files(
        settings.inputs, settings.format, KEY, stores, follow_links=settings.follow_links
    )
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
    # A key of JSON may be empty, which no column of Parquet files may.
    return frame.toDF(*(name or f"_c{place}" for place, name in enumerate(frame.columns)))


def _known_columns(files: Sequence[Location], wanted: Wanted) -> tuple[str, ...] | None:
    """All columns of files that say them in a header; None where only the rows can tell.

    Raises:
        InputError: A file cannot be read, or has two columns of one name.
    """
    names: dict[str, None] = {}
    for file in files:
        try:
            probed = probe(file, wanted)
        except UnreadableError as error:
            raise InputError(
                KEY, f"{file} cannot be read as {wanted.format} ({error.reason})", "mend it"
            ) from None
        if probed.form.header is None:
            return None if probed.form.columns else wanted.columns.names
        for name in probed.header:
            if probed.header.count(name) > 1:
                raise InputError(KEY, f"{file} has two columns `{name}`", "rename one of them")
        names |= dict.fromkeys(probed.header)
    return tuple(names)


def _read_tables(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    known: Format = TABLE_FORMATS.load(settings.format)
    assert known.load is not None
    frames = [known.load(session, name) for name in settings.inputs]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _renamed(error: InputError) -> InputError:
    """The corpus's error under the name of this setting."""
    return InputError(KEY, error.problem, error.remedy.replace("corpus.", "embedding."))
