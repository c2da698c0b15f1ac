"""Any table as Parquet files whose rows have a place that stays.

Parquet files are read where they are. All other formats are read by Spark once, into Parquet files
beside the output, so that what a second run finds is what the first one saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.corpus.inputs import find_files
from pipelines.corpus.sources import input_fingerprint
from pipelines.corpus.tables import LOADERS
from pipelines.errors import InputError
from pipelines.frames import read_path, write_path
from pipelines.settings import CorpusSettings, EmbeddingSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "embedding.inputs"


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


def stage_table(session: SparkSession, settings: EmbeddingSettings, folder: Path) -> None:
    """Writes the rows of inputs that are no Parquet files as such.

    Args:
        session: Reads them.
        settings: The inputs.
        folder: Is made.

    Raises:
        InputError: An input cannot be read.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        frame = _READERS[settings.format](session, settings)
        frame.write.parquet(write_path(folder), compression="zstd")
    except InputError as error:
        raise _renamed(error) from None
    except (PySparkException, Py4JJavaError) as error:
        raise InputError(
            KEY,
            f"{', '.join(settings.inputs)} cannot be read as {settings.format} ({_cause(error)})",
            "mend the input, or set embedding.format",
        ) from None


def _read_text(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    paths = _paths(settings)
    return session.read.text(paths).withColumnRenamed("value", settings.text_column)


def _read_jsonl(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    return session.read.json(_paths(settings), mode="FAILFAST")


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
        for file in find_files(settings.inputs, "csv", KEY)
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _read_tables(session: SparkSession, settings: EmbeddingSettings) -> DataFrame:
    frames = [LOADERS[settings.format](session, name) for name in settings.inputs]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _paths(settings: EmbeddingSettings) -> list[str]:
    return [read_path(file) for file in find_files(settings.inputs, settings.format, KEY)]


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
    """The innermost reason of a failed Spark job, in one line."""
    reason = str(error)
    java = getattr(error, "java_exception", None)
    while java is not None:
        reason = str(java.getMessage() or reason)
        java = java.getCause()
    return reason.strip().splitlines()[0][:200]
