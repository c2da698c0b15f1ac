"""Arrow columns: the content of their types, and their values as text, lists and Spark's types.

Several Arrow types store the same values. All readers of tables ask this module for a column's
content, and so take the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SPARK_DIGITS = 38
"""The most digits of a decimal number in Spark."""

# Spark has neither unsigned integers nor half floats.
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without a dictionary, run ends or an extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    return kind


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of a type can hold texts.

    Bytes count as UTF-8: some writers do not mark their texts. So do nulls: a file with only
    missing texts has no other type.
    """
    kind = plain_type(kind)
    return _is_string(kind) or _is_binary(kind) or bool(pa.types.is_null(kind))


def is_key(kind: pa.DataType) -> bool:
    """Return whether a column of a type can hold keys: strings, or numbers without a fraction.

    Bytes cannot: two invalid UTF-8 keys could have the same text.
    """
    kind = plain_type(kind)
    is_whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    return _is_string(kind) or bool(is_whole or pa.types.is_null(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column of a type holds lists, in any storage."""
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def is_list_of_values(kind: pa.DataType) -> bool:
    """Return whether a column of a type holds lists of plain values."""
    return is_list(kind) and is_plain(kind.value_type)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a column of a type has one value in each row."""
    return not (is_list(plain_type(kind)) or pa.types.is_nested(plain_type(kind)))


def _is_string(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(kind) for check in checks)


def _is_binary(kind: pa.DataType) -> bool:
    checks = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(check(kind) for check in (*checks, pa.types.is_fixed_size_binary))


_KNOWN_TO_SPARK = (
    (_is_string, pa.string()),
    (_is_binary, pa.binary()),
    (pa.types.is_null, pa.string()),
    (pa.types.is_time, pa.string()),
    (pa.types.is_decimal, pa.string()),
    (pa.types.is_duration, pa.int64()),
)
"""Checks of types that Spark lacks or reads otherwise, and the type of their values in Spark."""


def is_read_by_spark(kind: pa.DataType) -> bool:
    """Return whether Spark's own reader of Parquet takes a column of a type.

    It takes a column of nulls for numbers.
    """
    if isinstance(kind, pa.BaseExtensionType):
        # An extension may have a logical type unknown to Spark in the file, such as UUID.
        return _is_string(kind.storage_type)
    if pa.types.is_map(kind):
        return is_read_by_spark(kind.key_type) and is_read_by_spark(kind.item_type)
    if pa.types.is_struct(kind):
        return all(is_read_by_spark(field.type) for field in kind)
    if is_list(kind) or pa.types.is_dictionary(kind):
        return is_read_by_spark(kind.value_type)
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= SPARK_DIGITS)
    unknown = (pa.types.is_null, pa.types.is_float16, pa.types.is_time)
    return not any(check(kind) for check in unknown)


def is_opened_by_spark(kinds: Iterable[pa.DataType | str]) -> bool:
    """Return whether Spark opens a file with columns of these types, whichever of them it reads.

    Its library fails at the footer of a file with half floats anywhere.
    """
    return not any("halffloat" in str(kind) for kind in kinds)


def type_for_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values in Spark, nested types included.

    Numbers unknown to Spark get the next wider type; other unknown types become strings.
    """
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid":
        return pa.string()
    kind = plain_type(kind)
    if is_list(kind):
        return pa.list_(type_for_spark(kind.value_type))
    if pa.types.is_decimal(kind) and kind.precision <= SPARK_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    for is_such, known in _KNOWN_TO_SPARK:
        if is_such(kind):
            return known
    return _WIDER.get(kind, kind)


def schema_for_spark(fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema of columns in Spark's types."""
    return pa.schema([pa.field(field.name, type_for_spark(field.type)) for field in fields])


def plain_column(column: pa.Array) -> pa.Array:
    """Return the values of a column without a dictionary, run ends or an extension."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return pa.array([None if value is None else str(value) for value in column.to_pylist()])
        return plain_column(column.storage)
    if pa.types.is_dictionary(kind):
        return plain_column(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain_column(pc.run_end_decode(column))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        # Arrow's own cast of list views loses the lists after an empty one.
        return pa.array(column.to_pylist(), pa.large_list(kind.value_type))
    return column


def column_for_spark(column: pa.Array) -> pa.Array:
    """Return a column in its :func:`type_for_spark`."""
    kind = type_for_spark(column.type)
    return column if column.type == kind else plain_column(column).cast(kind)


def as_text(column: pa.Array | pa.ChunkedArray) -> pa.StringArray:
    """Return a column as well-formed strings, with U+FFFD for bytes other than UTF-8."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    column = plain_column(column)
    if pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    # Without the cast's own check: `validate` checks bytes below.
    texts = column.cast(pa.string(), safe=not _is_binary(column.type))
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
        mended = [value if value is None else value.decode(errors="replace") for value in raw]
        return pa.array(mended, pa.string())
    return texts


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of tables with the same columns.

    Columns of different types lose their dictionaries. If their types still differ, they become
    lists of one type, or texts.
    """
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables)
    columns = {}
    for name in tables[0].column_names:
        chunks = [plain_column(chunk) for table in tables for chunk in table[name].chunks]
        kinds = {chunk.type for chunk in chunks}
        if len(kinds) > 1:
            lists = type_for_spark(chunks[0].type) if all(map(is_list, kinds)) else None
            chunks = [chunk.cast(lists) if lists else as_text(chunk) for chunk in chunks]
        kind = chunks[0].type if chunks else plain_type(tables[0].schema.field(name).type)
        columns[name] = pa.chunked_array(chunks, kind)
    return pa.table(columns)


def lists_of(columns: Sequence[pa.Array]) -> pa.ListArray:
    """Return a column of lists, each with the columns' values of a row in their order."""
    rows, count = len(columns[0]), len(columns)
    by_row = np.arange(count * rows).reshape(count, rows).T.ravel()
    values = pa.concat_arrays(columns).take(pa.array(by_row))
    return pa.ListArray.from_arrays(np.arange(0, count * rows + 1, count, dtype=np.int32), values)


def list_lengths(lists: pa.ListArray) -> np.ndarray:
    """Return the number of values in each row, int32 [rows]; 0 for a null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int32)


def with_values(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Return the lists with other values, as many as ``lists.flatten()`` has; nulls stay."""
    offsets = np.concatenate([[0], np.cumsum(list_lengths(lists))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=lists.is_null())


def text_bytes(texts: pa.StringArray) -> tuple[bytes, np.ndarray]:
    """Return the concatenated bytes of the texts, and their bounds, int64 [texts + 1]."""
    if not len(texts):
        return b"", np.zeros(1, np.int64)
    # A slice shares the buffers of its array.
    bounds = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    buffer = texts.buffers()[2]
    data = b"" if buffer is None else buffer[bounds[0] : bounds[-1]].to_pybytes()
    return data, bounds.astype(np.int64) - bounds[0]
