"""Delta and Iceberg tables, and tables by name.

Spark reads them if the session has the connector of the format. Without it, libraries of Python
read Delta by a folder or an address, and Iceberg by a catalog or a metadata file
(:mod:`.readers.delta`, :mod:`.readers.iceberg`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses
from pyspark.sql.types import ArrayType, MapType, StructType

from pipelines.corpus.readers import delta, iceberg
from pipelines.corpus.readers.formats import Format
from pipelines.corpus.readers.inputs import (
    INPUTS,
    column_remedy,
    columns_of,
    named_columns,
    rows_of,
)
from pipelines.corpus.readers.table_files import frame_of_version
from pipelines.errors import InputError
from pipelines.libraries import DRIVER, EVERYWHERE, is_installed, pip_install
from pipelines.settings import CorpusSettings, StorageSettings
from pipelines.settings.corpus import column_of
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import read_path
from pipelines.spark.java import (
    delta_connector,
    has_connector,
    iceberg_connector,
    lacks_connector,
)

logger = logging.getLogger(__name__)

_SHOWN = 120
_VERSIONED = re.compile(r"(?P<table>.+)@v?(?P<version>\d+)")
_DELTA_LOG = re.compile(r"(\d{20})\.(?:json|checkpoint\..*)")


def _read_tables(
    session: SparkSession,
    settings: CorpusSettings,
    stores: StorageSettings,
    load: Callable[[SparkSession, str, StorageSettings], DataFrame],
) -> DataFrame:
    """Return the rows of tables one below the other; refuse a missing or unfit table or column."""
    if not settings.inputs:
        raise InputError(INPUTS, "it is empty", "Name tables")
    frames = []
    for given in settings.inputs:
        frame = load(session, given, stores)
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
    stores: StorageSettings = DEFAULT_STORES,
    remedy: str | None = None,
    version: str | None = None,
) -> DataFrame:
    """Return a table or view of the session, in a version or snapshot, by default the newest.

    Without a table of the name there is an `InputError` with the `remedy`.
    """
    try:
        return _table(session, name, version)
    except (PySparkException, Py4JJavaError) as error:
        problem = f"there is no table `{name}` ({spark_cause(error)[:_SHOWN]})"
        remedy = remedy or "Name it as `catalog.database.table`"
        raise InputError(INPUTS, problem, remedy) from None


def _table(session: SparkSession, name: str, version: str | None) -> DataFrame:
    """Return a table in a version: in SQL, since a table without versions ignores the option."""
    if version is None:
        return session.table(name)
    return session.sql(f"select * from {name} version as of {version}")


def _by_library(given: str, library: str, kind: str) -> None:
    logger.info(
        "reading %s by %s, since the session has no connector for %s tables", given, library, kind
    )


def no_reader(kind: str, connector: str, where: str) -> InputError:
    """Return the error of a cluster without connector and library for a kind of table."""
    remedy = f"Run `{pip_install(kind)}` {where}, or {connector[0].lower()}{connector[1:]}"
    return InputError(INPUTS, f"{kind.capitalize()} is not on the cluster", remedy)


def load_iceberg(
    session: SparkSession, given: str, stores: StorageSettings = DEFAULT_STORES
) -> DataFrame:
    """Return an Iceberg table, or a snapshot: `table@number`.

    The table is `catalog.database.table`, for Spark or in the configuration of `pyiceberg`; or a
    metadata file, which only `pyiceberg` reads.

    Raises:
        InputError: There is no such table, or neither connector nor library.
    """
    table, snapshot = table_and_version(given)
    connector = iceberg_connector(session.version)
    is_for_spark = not iceberg.is_metadata(table)
    if is_for_spark and has_connector(session, "iceberg"):
        remedy = f"Name it as `catalog.database.table`. {connector}"
        return load_table(session, table, stores, remedy, snapshot)
    if not is_installed(iceberg.LIBRARY):
        raise no_reader("iceberg", connector, EVERYWHERE)
    if is_for_spark:
        _by_library(given, iceberg.LIBRARY, "Iceberg")
    number = None if snapshot is None else int(snapshot)
    try:
        opened = iceberg.open_iceberg(table, stores)
    except iceberg.failures() as error:
        problem = f"there is no table `{given}` ({_first_line(error)})"
        remedy = f"Name it as `catalog.database.table`, with a catalog of {iceberg.CONFIGURATION}"
        remedy = f"{remedy}, or {connector[0].lower()}{connector[1:]}"
        raise InputError(INPUTS, problem, remedy) from None
    with _readable(given):
        version = iceberg.iceberg_version(INPUTS, given, opened, number, stores)
        return frame_of_version(session, version)


def load_delta(
    session: SparkSession, given: str, stores: StorageSettings = DEFAULT_STORES
) -> DataFrame:
    """Return a Delta table, by a name of the session, a folder or an address.

    With `@v12` it is a version.

    Raises:
        InputError: There is no such table, or neither connector nor library.
    """
    table, version = table_and_version(given)
    path = delta_folder(table)
    is_name = path is None and "/" not in table
    if not is_name and not has_connector(session, "delta"):
        return _load_delta_by_library(session, given, stores)
    options = {} if version is None else {"versionAsOf": version}
    try:
        if is_name:
            return _table(session, table, version)
        source = table if path is None else read_path(path)
        return session.read.format("delta").options(**options).load(source)
    except (PySparkException, Py4JJavaError) as error:
        problem = f"`{given}` is no Delta table ({spark_cause(error)[:_SHOWN]})"
        if lacks_connector(error):
            problem = "Delta is not on the cluster"
        remedy = f"Name a folder or table. {delta_connector(session.version)}"
        raise InputError(INPUTS, problem, remedy) from None


def _load_delta_by_library(session: SparkSession, given: str, stores: StorageSettings) -> DataFrame:
    if not is_installed(delta.LIBRARY):
        raise no_reader("delta", delta_connector(session.version), DRIVER)
    _by_library(given, delta.LIBRARY, "Delta")
    table, version = table_and_version(given)
    path = delta_folder(table)
    number = None if version is None else int(version)
    try:
        opened = delta.open_delta(table if path is None else str(path), stores, number)
        found = delta.delta_version(INPUTS, given, opened, stores)
    except delta.failures() as error:
        problem = f"`{given}` is no Delta table ({_first_line(error)})"
        raise InputError(INPUTS, problem, "Name the folder or address of one") from None
    with _readable(given):
        return frame_of_version(session, found)


@contextmanager
def _readable(given: str) -> Iterator[None]:
    """Name the table whose data files cannot be read in the block."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        problem = f"a data file of `{given}` cannot be read ({_first_line(error)})"
        raise InputError(INPUTS, problem, "Name a newer version, or repair the table") from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:_SHOWN]


def delta_folder(given: str) -> Path | None:
    """Return the folder on a file system of a Delta input, if it is one."""
    given, _ = table_and_version(given)
    path = Path(given.removeprefix("file://")).expanduser()
    return path.absolute() if path.is_dir() else None


def _iceberg_folder(given: str) -> Path | None:
    return iceberg.metadata_folder(table_and_version(given)[0])


def _delta_fingerprint(inputs: Sequence[str], stores: StorageSettings) -> dict[str, Any] | None:
    """Return the version of each table: the named one, or the newest in its log."""
    versions = []
    for given in inputs:
        table, version = table_and_version(_pin_delta(None, given, stores))
        if version is None:
            return None
        folder = delta_folder(table)
        versions.append([table if folder is None else str(folder), int(version)])
    return {"tables": versions}


def _pin_delta(session: SparkSession | None, given: str, stores: StorageSettings) -> str:
    """Name a table's newest version; the names in its log are in the protocol of Delta Lake."""
    table, version = table_and_version(given)
    if version is not None:
        return given
    folder = delta_folder(table)
    if folder is not None:
        log = folder / "_delta_log"
        names = (path.name for path in log.iterdir()) if log.is_dir() else ()
        found = [int(match[1]) for name in names if (match := _DELTA_LOG.fullmatch(name))]
        return f"{given}@v{max(found)}" if found else given
    if "/" in table and is_installed(delta.LIBRARY):
        # Without access the reader of the table reports the problem.
        with suppress(*delta.failures()):
            return f"{given}@v{delta.open_delta(table, stores).version()}"
    return given


def _pin_iceberg(session: SparkSession, given: str, stores: StorageSettings) -> str:
    """Name a table's current snapshot."""
    table, snapshot = table_and_version(given)
    if snapshot is not None:
        return given
    known = _snapshot_by_library(table, stores)
    if known is not None:
        return f"{given}@{known[0]}"
    try:
        history = session.table(f"{table}.history")
        newest = history.orderBy(F.desc("made_current_at")).select("snapshot_id").first()
    except (PySparkException, Py4JJavaError):
        # `load_table` reports the problem.
        return given
    return given if newest is None else f"{given}@{newest['snapshot_id']}"


def _snapshot_by_library(table: str, stores: StorageSettings) -> tuple[int, int] | None:
    """Return the ids of a table's snapshot and schema; None if the library cannot tell."""
    if is_installed(iceberg.LIBRARY):
        # The table may be known to Spark alone.
        with suppress(*iceberg.failures()):
            opened = iceberg.open_iceberg(table, stores)
            newest = opened.current_snapshot()
            if newest is not None:
                return newest.snapshot_id, opened.schema().schema_id
    return None


def _iceberg_fingerprint(inputs: Sequence[str], stores: StorageSettings) -> dict[str, Any] | None:
    """Return the snapshot of each table, as far as it is named or the library knows it.

    A schema may change without a snapshot.
    """
    found: list[list[Any]] = []
    for given in inputs:
        table, snapshot = table_and_version(given)
        if snapshot is not None:
            found.append([table, snapshot])
            continue
        newest = _snapshot_by_library(table, stores)
        if newest is None:
            return None
        found.append([table, *newest])
    return {"tables": found}


DELTA = Format(
    read=partial(_read_tables, load=load_delta),
    load=load_delta,
    fingerprint=_delta_fingerprint,
    pin=_pin_delta,
    folder=delta_folder,
    columns=True,
)
ICEBERG = Format(
    read=partial(_read_tables, load=load_iceberg),
    load=load_iceberg,
    fingerprint=_iceberg_fingerprint,
    pin=_pin_iceberg,
    folder=_iceberg_folder,
    columns=True,
)
TABLE = Format(
    read=partial(_read_tables, load=load_table),
    load=load_table,
    # A name says nothing of the version of its table.
    fingerprint=lambda inputs, stores: None,
    columns=True,
)
