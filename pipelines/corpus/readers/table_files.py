"""The rows of a Delta or Iceberg table from its data files, without a connector of Spark.

A library of the format plans on the driver: which files, with which rows and columns, make the
table at a version. Executors read these files, a few row groups a task. Where a file alone does not
give its rows (position deletes, nested columns that changed), they read it through the library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import column_for_spark, is_list, plain_column, schema_for_spark
from pipelines.errors import PipelineError
from pipelines.files.locations import Location, arrow_source, as_local, location
from pipelines.settings import StorageSettings
from pipelines.spark.parquet_parts import (
    BATCH_BYTES,
    MAX_ROWS,
    Part,
    frame_from_parts,
    parts_of_file,
    read_footers,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELD_ID = b"PARQUET:field_id"
_FILE = re.compile(r"^file:(?://)?(?=/)", re.IGNORECASE)
_UNPACKED = 3
"""About how many times larger the rows of a file are than the file."""

ReadByLibrary = Callable[[bytes], Iterator[pa.RecordBatch]]
"""Reads a file through the library, by its packed task. Runs on an executor."""


@dataclass(frozen=True)
class DataFile:
    """A data file of a table.

    Attributes:
        constants: Columns of one value by name: those that the table is partitioned by.
        deleted: Positions of deleted rows, int64 in their order.
        task: What the library needs to read the file; None if it has to.
        rows: Their number, where the library reads the file.
        size: In bytes, where the library reads the file.
    """

    path: Location
    constants: Mapping[str, pa.Scalar]
    deleted: bytes = b""
    task: bytes | None = None
    rows: int = 0
    size: int = 0


@dataclass(frozen=True)
class TableVersion:
    """A table at a version.

    Attributes:
        stored: The columns in the files by the table's columns: names, or field ids.
        by_library: Reads files with a task.
    """

    schema: pa.Schema
    stored: Mapping[str, str | int]
    files: Sequence[DataFile]
    by_library: ReadByLibrary | None = None


@dataclass(frozen=True)
class _FilePart(Part):
    """Row groups of a data file; all of it where the library reads it."""

    file: DataFile


def frame_of_version(session: SparkSession, version: TableVersion) -> DataFrame:
    """Return the rows of a table in Spark's types; executors read the files."""
    from pyspark.sql.pandas.types import from_arrow_schema

    # Without a time zone, a timestamp is no moment.
    schema = from_arrow_schema(schema_for_spark(version.schema), prefer_timestamp_ntz=True)
    parts = _parts_of(version.files)
    if not parts:
        return session.createDataFrame([], schema)
    work = partial(
        _read_parts,
        schema=version.schema,
        stored=version.stored,
        by_library=version.by_library,
    )
    return frame_from_parts(session, parts, work, schema)


def _parts_of(files: Iterable[DataFile]) -> list[_FilePart]:
    ordered = sorted(files, key=lambda file: str(file.path))
    own = [file for file in ordered if file.task is None]
    footers = iter(read_footers([file.path for file in own]))
    parts: list[_FilePart] = []
    for number, file in enumerate(ordered):
        if file.task is None:
            found = parts_of_file(file.path, number, next(footers))
            parts += [_FilePart(**vars(part), file=file) for part in found]
        elif file.rows:
            name = f"part-{number:05d}"
            parts.append(_FilePart(name, file.path, (), file.rows, _UNPACKED * file.size, file))
    return parts


def _read_parts(
    parts: Iterator[_FilePart],
    *,
    schema: pa.Schema,
    stored: Mapping[str, str | int],
    by_library: ReadByLibrary | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts with the table's columns, in Spark's types. Runs on an executor."""
    for part in parts:
        if part.file.task is None:
            batches = _read_part(part, schema, stored)
        else:
            assert by_library is not None, "a task is for a library"
            batches = (_in_schema(batch, schema, part.path) for batch in by_library(part.file.task))
        for batch in batches:
            columns = [column_for_spark(column) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, schema.names)


def _read_part(
    part: _FilePart, schema: pa.Schema, stored: Mapping[str, str | int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups with the table's columns and types. Runs on an executor."""
    average = max(part.size // part.rows, 1)
    deleted = np.frombuffer(part.file.deleted, np.int64)
    in_store = as_local(part.path) is None
    # Timestamps of 96 bits are read in us, since they reach further than 64 bits of ns.
    with pq.ParquetFile(
        arrow_source(part.path), pre_buffer=in_store, coerce_int96_timestamp_unit="us"
    ) as file:
        found = columns_in(file.schema_arrow, stored)
        earlier = range(part.row_groups[0])
        place = sum(file.metadata.row_group(group).num_rows for group in earlier)
        batches = file.iter_batches(
            batch_size=min(max(BATCH_BYTES // average, 1), MAX_ROWS),
            row_groups=part.row_groups,
            # Without a column a batch would have no rows.
            columns=list(found.values()) or file.schema_arrow.names[:1],
            use_threads=False,
        )
        for batch in batches:
            rows = _with_columns(batch, schema, found, part.file.constants)
            rows = _in_schema(rows, schema, part.path)
            kept = _kept(place, batch.num_rows, deleted)
            place += batch.num_rows
            yield rows if kept is None else rows.filter(kept)


def columns_in(file: pa.Schema, stored: Mapping[str, str | int]) -> dict[str, str]:
    """Return the names in a file by the table's columns, without the columns that it lacks."""
    ids = {
        int(field.metadata[_FIELD_ID]): field.name
        for field in file
        if field.metadata and _FIELD_ID in field.metadata
    }
    named = {name: name for name in file.names}
    places = ((name, (ids if isinstance(key, int) else named), key) for name, key in stored.items())
    return {name: known[key] for name, known, key in places if key in known}  # type: ignore[index]


def _with_columns(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    found: Mapping[str, str],
    constants: Mapping[str, pa.Scalar],
) -> pa.RecordBatch:
    """Return the table's columns; one without values in the file is null."""
    columns = []
    for field in schema:
        if field.name in constants:
            columns.append(pa.repeat(constants[field.name], batch.num_rows))
        elif field.name in found:
            columns.append(batch.column(found[field.name]))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema.names)


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema, path: Location) -> pa.RecordBatch:
    """Return columns with the table's types.

    Raises:
        PipelineError: A value does not fit its column.
    """
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.type == field.type:
            columns.append(column)
            continue
        try:
            columns.append(plain_column(column).cast(field.type))
        except pa.ArrowException as error:
            cause = str(error).splitlines()[0]
            raise PipelineError(
                f"column `{field.name}` of {path} does not fit the table's {field.type} ({cause})"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _kept(place: int, rows: int, deleted: np.ndarray) -> pa.BooleanArray | None:
    """Return the mask of a batch that begins at a row of its file; None to keep all rows."""
    first, stop = np.searchsorted(deleted, (place, place + rows))
    if first == stop:
        return None
    mask = np.ones(rows, bool)
    mask[deleted[first:stop] - place] = False
    return pa.array(mask)


def is_as_stored(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column's values in a file are its values in the table, or narrower numbers.

    Nested columns other than lists of values are not: a field of the same name may be another one.
    """
    if is_list(wanted):
        return is_list(stored) and is_as_stored(stored.value_type, wanted.value_type)
    if pa.types.is_nested(wanted) or pa.types.is_nested(stored):
        return False
    (known,) = schema_for_spark([pa.field("", stored)]).types
    (asked,) = schema_for_spark([pa.field("", wanted)]).types
    widened = ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
    return bool(known == asked) or (known, asked) in widened


def place_of_file(uri: str, stores: StorageSettings) -> Location:
    """Return the place of a data file, by a path or an address."""
    return location(_FILE.sub("", uri), stores)
