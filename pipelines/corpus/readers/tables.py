"""Delta and Iceberg, and tables by name: these are read by Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from pipelines.corpus.readers.formats import Format
from pipelines.corpus.readers.inputs import INPUTS
from pipelines.corpus.readers.spark_rows import columns_of, listed, named_columns, rows_of
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import read_path
from pipelines.spark.releases import release_of

_DELTA_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")


def _read_tables(
    session: SparkSession,
    settings: CorpusSettings,
    load: Callable[[SparkSession, str], DataFrame],
) -> DataFrame:
    """Tables one below the other.

    Raises:
        InputError: A table or a column is not there, or a column holds no plain values.
    """
    if not settings.inputs:
        raise InputError(INPUTS, "it is empty", "name tables")
    frames = []
    for given in settings.inputs:
        frame = load(session, given)
        types = {field.name: field.dataType for field in frame.schema.fields}
        for key, name in named_columns(settings):
            if name not in types:
                raise InputError(key, f"{given} has no column `{name}`", f"it has {listed(types)}")
            if isinstance(types[name], (ArrayType, MapType, StructType)):
                kind = types[name].simpleString()
                raise InputError(
                    key, f"column `{name}` of {given} holds {kind}", "name a column of plain values"
                )
        frames.append(rows_of(frame, columns_of(settings)))
    return reduce(DataFrame.unionByName, frames)


def load_table(session: SparkSession, name: str, remedy: str | None = None) -> DataFrame:
    """A table or view of the session.

    Raises:
        InputError: There is none of that name.
    """
    try:
        return session.table(name)
    except (PySparkException, Py4JJavaError) as error:
        raise InputError(
            INPUTS,
            f"there is no table `{name}` ({spark_cause(error)[:120]})",
            remedy or "name it as `catalog.database.table`",
        ) from None


def load_iceberg(session: SparkSession, name: str) -> DataFrame:
    """An Iceberg table of a catalog of the session."""
    return load_table(
        session,
        name,
        "name it as `catalog.database.table`; the catalog needs the package "
        f"org.apache.iceberg:iceberg-spark-runtime-{_spark(session)}_{_scala(session)} in "
        "spark.jars.packages, "
        "spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions "
        "and spark.sql.catalog.<catalog>=org.apache.iceberg.spark.SparkCatalog",
    )


def load_delta(session: SparkSession, given: str) -> DataFrame:
    """A Delta table: a folder that Spark can reach, or a table's name.

    Raises:
        InputError: There is none, or the cluster lacks Delta.
    """
    path = delta_folder(given)
    try:
        if path is None and "/" not in given:
            return session.table(given)
        source = given if path is None else read_path(path)
        return session.read.format("delta").load(source)
    except (PySparkException, Py4JJavaError) as error:
        lacks = "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFound" in str(error)
        problem = (
            "Delta is not on the cluster"
            if lacks
            else f"`{given}` is no Delta table ({spark_cause(error)[:120]})"
        )
        raise InputError(
            INPUTS,
            problem,
            "name a folder or table; Delta needs the package io.delta:delta-spark_"
            f"{_scala(session)} in spark.jars.packages, "
            "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension and "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        ) from None


def delta_folder(given: str) -> Path | None:
    """The folder on a file system that a Delta input names, if it is one."""
    path = Path(given.removeprefix("file://")).expanduser()
    return path.absolute() if path.is_dir() else None


def _spark(session: SparkSession) -> str:
    return ".".join(session.version.split(".")[:2])


def _scala(session: SparkSession) -> str:
    return release_of(session.version).scala


def _delta_fingerprint(inputs: Sequence[str]) -> dict[str, Any] | None:
    """The newest version in the log of each table; its names are in the protocol of Delta Lake."""
    versions = []
    for given in inputs:
        folder = delta_folder(given)
        log = folder / "_delta_log" if folder is not None else None
        if log is None or not log.is_dir():
            return None
        found = [match for path in log.iterdir() if (match := _DELTA_LOG.fullmatch(path.name))]
        if not found:
            return None
        versions.append([str(folder), max(int(match[1]) for match in found)])
    return {"tables": versions}


def _no_fingerprint(inputs: Sequence[str]) -> None:
    """A name says nothing of the version of its table."""


DELTA = Format(
    read=partial(_read_tables, load=load_delta),
    load=load_delta,
    fingerprint=_delta_fingerprint,
    columns=True,
)
ICEBERG = Format(
    read=partial(_read_tables, load=load_iceberg),
    load=load_iceberg,
    fingerprint=_no_fingerprint,
    columns=True,
)
TABLE = Format(
    read=partial(_read_tables, load=load_table),
    load=load_table,
    fingerprint=_no_fingerprint,
    columns=True,
)
