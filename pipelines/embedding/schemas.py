"""Types and metadata of Parquet files, as Spark, pandas and pyarrow all read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.arrow_columns import type_for_spark
from pipelines.errors import InputError
from pipelines.files.locations import Location, arrow_source

KEY = "embedding.inputs"

# What Spark takes for the columns of a file, whatever columns it has. Its other keys say in which
# calendar dates are, and stay.
_SPARK_COLUMNS = b"org.apache.spark.sql.parquet.row."
_PANDAS = b"pandas"


def open_parquet(path: Location) -> pq.ParquetFile:
    """Opens a file; timestamps of 96 bits, which reach further than 64 bits of ns do, are in us.

    Pages that have a checksum, as those of tables of vectors do, are compared with it.
    """
    return pq.ParquetFile(
        arrow_source(path), coerce_int96_timestamp_unit="us", page_checksum_verification=True
    )


def common_schema(file: pq.ParquetFile) -> pa.Schema:
    """The columns with the types that rows of the file are given; see :func:`in_common_types`.

    Timestamps of 96 bits are moments (`timestamp[us, UTC]`), as they are to Spark, which writes
    them. Those in ns, which Spark does not read, are in us. Views of strings and bytes, which older
    readers do not know, are strings and bytes.
    """
    leaves = (file.schema.column(number) for number in range(len(file.schema)))
    fields = [field.with_type(_common_type(field.type, leaves)) for field in file.schema_arrow]
    return pa.schema(fields, _kept(file.schema_arrow.metadata or {}))


def _common_type(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema]) -> pa.DataType:
    """The type, all the way down; takes as many columns of the file as it has leaves."""
    if isinstance(kind, pa.BaseExtensionType):
        _common_type(kind.storage_type, leaves)
        return kind
    rebuilt = next((rebuilt for is_one, rebuilt in _NESTED if is_one(kind)), None)
    if rebuilt is not None:
        return rebuilt(kind, lambda field: field.with_type(_common_type(field.type, leaves)))
    leaf = next(leaves)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return type_for_spark(kind)
    if not pa.types.is_timestamp(kind):
        return kind
    if leaf.physical_type == "INT96":
        return pa.timestamp("us", "UTC")
    return pa.timestamp("us", kind.tz) if kind.unit == "ns" else kind


_Inside = Callable[[pa.Field], pa.Field]
_NESTED: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, _Inside], pa.DataType]], ...
] = (
    (
        pa.types.is_map,
        lambda kind, inside: pa.map_(inside(kind.key_field), inside(kind.item_field)),
    ),
    (pa.types.is_list, lambda kind, inside: pa.list_(inside(kind.value_field))),
    (pa.types.is_large_list, lambda kind, inside: pa.large_list(inside(kind.value_field))),
    (
        pa.types.is_fixed_size_list,
        lambda kind, inside: pa.list_(inside(kind.value_field), kind.list_size),
    ),
    (pa.types.is_struct, lambda kind, inside: pa.struct([inside(field) for field in kind])),
)
"""What tells a nested type, and the same with other types inside."""


def in_common_types(batch: pa.RecordBatch, schema: pa.Schema, path: Location) -> pa.RecordBatch:
    """Rows of a file in the types of its common schema. Runs on an executor.

    Args:
        schema: Columns of these names, from :func:`common_schema`.
        path: Of the file, for the message.

    Raises:
        InputError: A timestamp is no whole number of microseconds.
    """
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid:
            raise _too_precise(field.name, path) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_timestamps(footer: pq.FileMetaData, path: Location) -> None:
    """Looks in a footer for timestamps that microseconds cannot hold.

    It has the first and the last one of each row group, which tell almost always.

    Raises:
        InputError: There are some.
    """
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        if column.physical_type != "INT64" or "timeUnit=nano" not in str(column.logical_type):
            continue
        groups = (footer.row_group(group).column(number) for group in range(footer.num_row_groups))
        for seen in (group.statistics for group in groups):
            if (
                seen is not None
                and seen.has_min_max
                and (seen.min_raw % 1000 or seen.max_raw % 1000)
            ):
                raise _too_precise(column.path, path)


def _too_precise(column: str, path: Location) -> InputError:
    return InputError(
        KEY,
        f"`{column}` of {path} counts nanoseconds, which Spark does not read",
        "round it to microseconds",
    )


def _kept(metadata: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Without what would be wrong of a table that has a column more."""
    return {
        key: value
        for key, value in metadata.items()
        if not key.startswith(_SPARK_COLUMNS) and (key != _PANDAS or _names_are_strings(value))
    }


def _names_are_strings(pandas: bytes) -> bool:
    """Whether pandas takes names of columns as they stand; numbers and tuples are parsed."""
    levels = json.loads(pandas).get("column_indexes", [])
    return len(levels) <= 1 and all(level["pandas_type"] == "unicode" for level in levels)
