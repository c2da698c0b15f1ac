"""Merge the rows of a table of vectors into a Delta or Iceberg table, by their keys.

The table's connector carries out an SQL MERGE: it adds rows with new keys, replaces different rows,
and deletes rows with removed keys. A missing target is created from the rows. Without the
connector, and for folders and addresses, a library does the same
(:mod:`pipelines.vectors.library_merge`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.arrow_columns import schema_for_spark
from pipelines.catalog import MERGE_FORMATS
from pipelines.errors import InputError
from pipelines.files import records, storage
from pipelines.files.locations import Location, as_local
from pipelines.settings import EmbeddingSettings, StorageSettings
from pipelines.spark.errors import spark_cause
from pipelines.spark.frames import read_path
from pipelines.spark.java import delta_connector, has_connector, iceberg_connector
from pipelines.spark.jobs import run_with_timeout
from pipelines.spark.parquet_parts import (
    Part,
    data_files,
    frame_from_parts,
    parts_of_files,
    read_footers,
    read_part,
)
from pipelines.vectors import library_merge
from pipelines.vectors.library_merge import KEY, Rows, Writer, in_schema, is_address
from pipelines.vectors.table_job import MANIFEST_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


logger = logging.getLogger(__name__)

MERGED_FILE = "_merged.json"
"""Records the target of the last merge."""
SOURCE = "sentence_pipelines_vectors"
"""The view of the rows to merge."""


@dataclass(frozen=True)
class MergeFormat:
    """A kind of table to merge rows into.

    ``provider`` is Spark's name of it; ``connector`` returns the needs of a cluster with a Spark
    version. ``writer`` merges without Spark, if a library can.
    """

    provider: str
    connector: Callable[[str], str]
    writer: Writer | None = None


DELTA = MergeFormat("delta", delta_connector, library_merge.DELTA)
ICEBERG = MergeFormat("iceberg", iceberg_connector, library_merge.ICEBERG)


def check_target(
    session: SparkSession, settings: EmbeddingSettings, output: Location, stores: StorageSettings
) -> None:
    """Refuse a target that cannot be merged into, before anything is embedded.

    Raises:
        InputError: The cluster has neither connector nor library for this kind of table, or the
            library does not reach the target.
    """
    target = settings.merge_into
    if target is None:
        return
    merged = MERGE_FORMATS.load(settings.merge_format)
    connector = merged.connector(session.version)
    writer = _writer(session, settings)
    if writer is None:
        if not has_connector(session, merged.provider):
            problem = f"the cluster has no connector for {settings.merge_format}"
            raise InputError(KEY, problem, connector)
        return
    try:
        writer.check_target(target, output, stores)
    except InputError as error:
        if is_address(target):
            raise
        remedy = f"{error.remedy}, or {connector[0].lower()}{connector[1:]}"
        raise InputError(KEY, error.problem, remedy) from None


def _writer(session: SparkSession, settings: EmbeddingSettings) -> Writer | None:
    """Return the library for the target; None if Spark merges.

    Names belong to Spark where it has the connector.
    """
    merged: MergeFormat = MERGE_FORMATS.load(settings.merge_format)
    assert settings.merge_into is not None, "there is a target"
    is_for_spark = not is_address(settings.merge_into) and has_connector(session, merged.provider)
    return None if is_for_spark else merged.writer


def merge_table(
    session: SparkSession, settings: EmbeddingSettings, folder: Location, stores: StorageSettings
) -> None:
    """Merge a whole table into the target, once.

    Raises:
        InputError: The target cannot be merged into.
        PipelineError: The statement stood still.
    """
    target, key = settings.merge_into, settings.key_column
    if target is None or key is None:
        return
    merged: dict[str, Any] = {
        "table": target,
        "build": records.built(folder / MANIFEST_FILE, lambda manifest: int(manifest["build"])),
    }
    done = folder / MERGED_FILE
    if done.is_file() and storage.read_json(done) == merged:
        logger.info("embedding: %s has these rows already", target)
        return
    writer = _writer(session, settings)
    if writer is None:
        _merge_by_spark(session, settings, target, key, folder)
        logger.info("embedding: merged the rows into %s", target)
    else:
        changed = writer.merge(Rows.of(folder, key), target, stores)
        what = "all rows" if changed is None else f"{changed:,} changed keys"
        logger.info("embedding: merged %s into %s by %s", what, target, writer.library)
    storage.write_json(done, merged)


def _merge_by_spark(
    session: SparkSession, settings: EmbeddingSettings, target: str, key: str, folder: Location
) -> None:
    frame = read_all_columns(session, folder)
    frame.createOrReplaceTempView(SOURCE)
    try:
        _carry_out(session, settings, target, key, frame.schema)
    finally:
        session.catalog.dropTempView(SOURCE)


def read_all_columns(session: SparkSession, folder: Location) -> DataFrame:
    """Return the rows of a table; columns missing in a file are null there.

    Executors read a table in a store; see :func:`pipelines.spark.frames.read_parquet`.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    local = as_local(folder)
    # Parts of different input files may differ in their columns.
    if local is not None:
        return session.read.option("mergeSchema", "true").parquet(read_path(local))
    files = data_files(folder)
    known = [schema_for_spark(footer.schema.to_arrow_schema()) for footer in read_footers(files)]
    schema = pa.unify_schemas(known)
    work = partial(_read_all_columns, schema=schema)
    return frame_from_parts(session, parts_of_files(files), work, from_arrow_schema(schema))


def _read_all_columns(parts: Iterator[Part], *, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of files, perhaps with missing columns. Runs on an executor."""
    for part in parts:
        for batch in read_part(part, schema.names):
            yield in_schema(batch, schema)


def _carry_out(
    session: SparkSession, settings: EmbeddingSettings, target: str, key: str, schema: StructType
) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    merged = MERGE_FORMATS.load(settings.merge_format)
    try:
        if session.catalog.tableExists(target):
            statement = merge_statement(target, key, schema)
        else:
            statement = create_statement(target, merged.provider)
        name = f"embedding: merging into {target}"
        run = partial(session.sql, statement)
        run_with_timeout(session, name, run)
    except (PySparkException, Py4JJavaError) as error:
        problem = f"Spark cannot merge into {target} ({spark_cause(error)[:200]})"
        raise InputError(KEY, problem, merged.connector(session.version)) from None


def create_statement(target: str, provider: str) -> str:
    """Return the statement to create the table from the rows."""
    return f"CREATE TABLE {target} USING {provider} AS SELECT * FROM {SOURCE}"


def merge_statement(target: str, key: str, schema: StructType) -> str:
    """Return the statement to replace the rows of a table by those of :data:`SOURCE`.

    ``target`` is the SQL name of the table. Equal rows are not written again, unless a column of
    the schema holds a map: SQL does not compare maps.
    """
    values = [field for field in schema.fields if field.name != key]
    differs = " OR ".join(
        f"NOT (target.{_quoted(field.name)} <=> source.{_quoted(field.name)})" for field in values
    )
    condition = f" AND ({differs})" if all(_comparable(field.dataType) for field in values) else ""
    return (
        f"MERGE INTO {target} AS target USING {SOURCE} AS source "
        f"ON target.{_quoted(key)} = source.{_quoted(key)} "
        f"WHEN MATCHED{condition} THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _comparable(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return _comparable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_comparable(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType)
