"""Any table as Parquet files whose rows have a place that stays.

Parquet files are read where they are. All other formats are read once, into Parquet files beside
the output, so that what a second run finds is what the first one saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql.types import StringType, StructField, StructType

from pipelines.catalog import TABLE_FORMATS
from pipelines.corpus.readers.csv_parser import RFC_4180, Dialect
from pipelines.corpus.readers.formats import Columns, Format, Wanted
from pipelines.corpus.readers.inputs import find_files
from pipelines.corpus.readers.ranges import probe
from pipelines.corpus.readers.spark_reader import input_fingerprint, planned_splits
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.embedding.footers import InputFile, read_inputs
from pipelines.embedding.overlap_check import check_files_outside
from pipelines.embedding.records import tasks_as_json
from pipelines.errors import InputError
from pipelines.files.folders import check_place
from pipelines.files.locations import Location
from pipelines.settings import CorpusSettings, EmbeddingSettings, StorageSettings
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import frame_from_json, write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
