"""Any table as Parquet files whose rows have a place that stays.

Parquet files are read where they are. All other formats are read by Spark once, into Parquet files
beside the output, so that what a second run finds is what the first one saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StringType, StructField, StructType

from pipelines.corpus.inputs import find_files
from pipelines.corpus.planning import pack, split_file
from pipelines.corpus.sources import input_fingerprint
from pipelines.corpus.splits import SPLIT_DDL
from pipelines.corpus.streams import UnreadableError
from pipelines.corpus.tables import LOADERS
from pipelines.embedding.apart import check_files_outside
from pipelines.embedding.lines import encoding_of, read_lines
from pipelines.errors import InputError
from pipelines.frames import read_path, write_path
from pipelines.settings import CorpusSettings, EmbeddingSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "embedding.inputs"

_TRACEBACK = "Traceback (most recent call last):\n"
_NOT_SPARKS = (".xz", ".zst")
"""Suffixes of what Spark does not unpack, or only with a library that few clusters have."""


def input_stamps(settings: EmbeddingSettings) -> dict[str, Any] | None:
    """What changes when the inputs do; None of tables that have no version.

    Raises:
        InputError: An input is not there.
    """
    if not settings.inputs:
        raise InputError(KEY, "it is empty", f"name the {settings.format} inputs to read")
    asked = CorpusSettings(inputs=settings.inputs, format=settings.format, pairs="single")
    try:
        return input_fingerprint(asked)
    except InputError as error:
        raise _renamed(error) from None


def parquet_files(settings: EmbeddingSettings) -> list[Path]:
    """The files of `embedding.inputs`, sorted.

    Raises:
        InputError: One is not there, or is no Parquet file.
    """
    files = find_files(settings.inputs, "parquet", KEY)
    for file in files:
        schema_of(file)
    return files


def schema_of(file: Path) -> pa.Schema:
    """The columns of a Parquet file.

    Raises:
        InputError: It is none.
    """
    try:
        return pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            KEY, f"{file} cannot be read ({reason})", "mend it, or name others"
        ) from None


def stage_table(
    session: SparkSession, settings: EmbeddingSettings, folder: Path, output: Path
) -> None:
    """Writes the rows of inputs that are no Parquet files as such.

    Args:
        session: Reads them.
        settings: The inputs.
        folder: Is made.
        output: Of the job, where no table of the inputs may lie.

    Raises:
        InputError: An input cannot be read.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        frame = _READERS[settings.format](session, settings)
        if settings.format in LOADERS:
            check_files_outside(_local_files(frame), output)
        frame.write.parquet(write_path(folder), compression="zstd")
    except InputError as error:
        raise _renamed(error) from None
    except (PySparkException, Py4JJavaError) as error:
        names = ", ".join(settings.inputs)
        raise InputError(
            KEY,
            f"{names} cannot be read as {settings.format} ({_cause(error)})",
            "mend the input, or set embedding.format",
        ) from None


def _local_files(frame: DataFrame) -> list[Path]:
    """Files of a table on a file system; of views that compute there are none."""
    files = (name for name in frame.inputFiles() if name.startswith("file:/"))
    return [Path(unquote(urlsplit(name).path)) for name in files]


def _read_text(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    """Read by Python, which knows more encodings and compressions than Spark."""
    files = find_files(settings.inputs, "text", KEY)
    splits = [split for file in files for split in split_file(file, "text")]
    tasks = pack(splits, session.sparkContext.defaultParallelism)
    planned = [[(split.file, split.start, split.stop) for split in task] for task in tasks]
    # Slices of a list of tasks, because a DataFrame has no say in what its partitions hold.
    listed = session.sparkContext.parallelize(planned, len(planned)).flatMap(list)
    column = settings.text_column
    schema = StructType([StructField(column, StringType())])
    return session.createDataFrame(listed, SPLIT_DDL).mapInArrow(
        partial(read_lines, column=column), schema
    )


def _read_jsonl(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    paths = [read_path(file) for file in _files_for_spark(settings)]
    return session.read.json(paths, mode="FAILFAST")


def _read_csv(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    """Every column as the text that stands there; tabs where the name says so."""
    frames = [
        session.read.csv(
            read_path(file),
            header=True,
            sep="\t" if ".tsv" in file.suffixes or ".tab" in file.suffixes else ",",
            multiLine=True,
            quote='"',
            escape='"',
            mode="FAILFAST",
        )
        for file in _files_for_spark(settings)
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _read_tables(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    frames = [LOADERS[settings.format](session, name) for name in settings.inputs]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _files_for_spark(settings: EmbeddingSettings) -> list[Path]:
    """The files, of a compression and an encoding that Spark reads.

    Raises:
        InputError: One is of another.
    """
    files = find_files(settings.inputs, settings.format, KEY)
    for file in files:
        if file.suffix.lower() in _NOT_SPARKS:
            raise InputError(KEY, f"Spark does not unpack {file}", "unpack it, or pack it as .gz")
        try:
            encoding = encoding_of(file)
        except UnreadableError as error:
            raise InputError(
                KEY, f"{file} cannot be read as {settings.format} ({error.reason})", "mend it"
            ) from None
        if encoding.name != "utf-8":
            raise InputError(KEY, f"{file} is in {encoding.label}", "convert it to UTF-8")
    return files


_READERS: Mapping[str, Callable[[SparkSession, EmbeddingSettings], DataFrame]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    **dict.fromkeys(LOADERS, _read_tables),
}


def _renamed(error: InputError) -> InputError:
    """The corpus's error under the name of this setting."""
    return InputError(KEY, error.problem, error.remedy.replace("corpus.", "embedding."))


def _cause(error: Exception) -> str:
    """What a failed Spark job says: the last line of Python's traceback, or Java's cause."""
    told = [str(error)]
    java = getattr(error, "java_exception", None)
    while java is not None:
        told.append(str(java.getMessage() or ""))
        java = java.getCause()
    for text in reversed(told):
        _, traceback, python = text.partition(_TRACEBACK)
        if traceback:
            return python.strip().partition("\n\n")[0].splitlines()[-1].strip()
    innermost = next((text for text in reversed(told) if text.strip()), repr(error))
    return innermost.strip().splitlines()[0][:200]
