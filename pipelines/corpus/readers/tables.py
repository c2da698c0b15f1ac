"""Delta and Iceberg tables, and tables by name, all read by Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.types import ArrayType, MapType, StructType

from pipelines.corpus.readers.formats import Format
from pipelines.corpus.readers.inputs import (
    INPUTS,
    column_remedy,
    columns_of,
    named_columns,
    rows_of,
)
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings
from pipelines.settings.corpus import column_of
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import read_path
from pipelines.spark.java import delta_connector, iceberg_connector

_VERSIONED = re.compile(r"(?P<table>.+)@v?(?P<version>\d+)")
_DELTA_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")


def _read_tables(
    session: SparkSession,
    settings: CorpusSettings,
    load: Callable[[SparkSession, str], DataFrame],
) -> DataFrame:
    """Return the rows of tables one below the other; refuse a missing or unfit table or column."""
    if not settings.inputs:
        raise InputError(INPUTS, "it is empty", "Name tables")
    frames = []
    for given in settings.inputs:
        frame = load(session, given)
        types = {field.name: field.dataType for field in frame.schema.fields}
        for key, name in named_columns(settings):
            column = column_of(name, types)
            if column not in types:
                problem = f"{given} has no column `{column}`"
                raise InputError(key, problem, column_remedy(key, types))
            kind = types[column]
            if column != name:
                if not isinstance(kind, ArrayType):
                    problem = f"column `{column}` of {given} holds no list"
                    raise InputError(key, problem, f"Name it as `{column}`")
                kind = kind.elementType
            if isinstance(kind, (ArrayType, MapType, StructType)):
                problem = f"column `{name}` of {given} holds {kind.simpleString()}"
                raise InputError(key, problem, "Name a column of plain values")
        frames.append(rows_of(frame, columns_of(settings)))
    return reduce(DataFrame.unionByName, frames)


def table_and_version(given: str) -> tuple[str, str | None]:
    """Return the Delta or Iceberg table of an input, and the version behind its @."""
    found = None if Path(given).exists() else _VERSIONED.fullmatch(given)
    return (given, None) if found is None else (found["table"], found["version"])


def load_table(
    session: SparkSession,
    name: str,
    remedy: str | None = None,
    version: str | None = None,
) -> DataFrame:
    """Return a table or view of the session, in a version or snapshot, by default the newest.

    Without a table of the name there is an `InputError` with the `remedy`.
    """
    try:
        return _table(session, name, version)
    except (PySparkException, Py4JJavaError) as error:
        problem = f"there is no table `{name}` ({spark_cause(error)[:120]})"
        remedy = remedy or "Name it as `catalog.database.table`"
        raise InputError(INPUTS, problem, remedy) from None


def _table(session: SparkSession, name: str, version: str | None) -> DataFrame:
    """Return a table in a version: in SQL, since a table without versions ignores the option."""
    if version is None:
        return session.table(name)
    return session.sql(f"select * from {name} version as of {version}")


def load_iceberg(session: SparkSession, name: str) -> DataFrame:
    """Return an Iceberg table of a catalog of the session, or a snapshot: `table@number`."""
    table, snapshot = table_and_version(name)
    remedy = f"Name it as `catalog.database.table`. {iceberg_connector(session.version)}"
    return load_table(session, table, remedy, snapshot)


def load_delta(session: SparkSession, given: str) -> DataFrame:
    """Return a Delta table, by a name or a folder in Spark's reach; with `@v12`, a version.

    An `InputError` says whether there is none, or the cluster lacks Delta.
    """
    table, version = table_and_version(given)
    path = delta_folder(table)
    options = {} if version is None else {"versionAsOf": version}
    try:
        if path is None and "/" not in table:
            return _table(session, table, version)
        source = table if path is None else read_path(path)
        return session.read.format("delta").options(**options).load(source)
    except (PySparkException, Py4JJavaError) as error:
        problem = f"`{given}` is no Delta table ({spark_cause(error)[:120]})"
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFound" in str(error):
            problem = "Delta is not on the cluster"
        remedy = f"Name a folder or table. {delta_connector(session.version)}"
        raise InputError(INPUTS, problem, remedy) from None


def delta_folder(given: str) -> Path | None:
    """Return the folder on a file system of a Delta input, if it is one."""
    given, _ = table_and_version(given)
    path = Path(given.removeprefix("file://")).expanduser()
    return path.absolute() if path.is_dir() else None


def _delta_fingerprint(inputs: Sequence[str]) -> dict[str, Any] | None:
    """Return the version of each table: the named one, or the newest in its log."""
    versions = []
    for given in inputs:
        table, version = table_and_version(_pin_delta(None, given))
        if version is None:
            return None
        folder = delta_folder(table)
        versions.append([table if folder is None else str(folder), int(version)])
    return {"tables": versions}


def _pin_delta(session: SparkSession | None, given: str) -> str:
    """Name a table's newest version; the names in its log are in the protocol of Delta Lake."""
    table, version = table_and_version(given)
    folder = delta_folder(table)
    log = folder / "_delta_log" if folder is not None else None
    if version is not None or log is None or not log.is_dir():
        return given
    found = [match for path in log.iterdir() if (match := _DELTA_LOG.fullmatch(path.name))]
    return f"{given}@v{max(int(match[1]) for match in found)}" if found else given


def _pin_iceberg(session: SparkSession, given: str) -> str:
    """Name a table's current snapshot."""
    table, snapshot = table_and_version(given)
    if snapshot is not None:
        return given
    try:
        history = session.table(f"{table}.history")
        newest = history.orderBy(F.desc("made_current_at")).select("snapshot_id").first()
    except (PySparkException, Py4JJavaError):
        # `load_table` reports the problem.
        return given
    return given if newest is None else f"{given}@{newest['snapshot_id']}"


def _snapshot_fingerprint(inputs: Sequence[str]) -> dict[str, Any] | None:
    """Return the snapshots, if all inputs name one: a name alone says nothing of the content."""
    named = [list(table_and_version(given)) for given in inputs]
    return {"tables": named} if all(snapshot is not None for _, snapshot in named) else None


DELTA = Format(
    read=partial(_read_tables, load=load_delta),
    load=load_delta,
    fingerprint=_delta_fingerprint,
    pin=_pin_delta,
    columns=True,
)
ICEBERG = Format(
    read=partial(_read_tables, load=load_iceberg),
    load=load_iceberg,
    fingerprint=_snapshot_fingerprint,
    pin=_pin_iceberg,
    columns=True,
)
TABLE = Format(
    read=partial(_read_tables, load=load_table),
    load=load_table,
    # A name says nothing of the version of its table.
    fingerprint=lambda inputs: None,
    columns=True,
)
