"""Digests of rows: equal for rows of equal values, whatever file they are in.

The order of columns, dictionaries, large types and the width of whole numbers do not count. A null
counts like a missing column. The bytes of a row are the names, types and values of its columns, in
which each value tells where it ends, so no two different rows share them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.arrow_columns import is_list, list_lengths, plain_column, plain_type

DIGEST_BYTES = 16
"""Length of a digest: only among 2^64 rows would two share one by chance."""
_BYTES = pa.large_binary()
_EMPTY = pa.scalar(b"", _BYTES)
# First bytes of a value; the values of a list without nulls stand together.
_NULL, _VALUE, _PACKED = (pa.scalar(byte, _BYTES) for byte in (b"\0", b"\1", b"\2"))


def digests_of_rows(rows: pa.RecordBatch, names: Iterable[str]) -> pa.BinaryArray:
    """Return a digest for each row of the named columns; missing ones are skipped."""
    known = sorted({*names} & {*rows.schema.names})
    pieces = [_with_name(name, plain_column(rows.column(name))) for name in known]
    joined = _joined(*pieces, pa.repeat(_EMPTY, rows.num_rows))
    digests = (
        hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() for row in joined.to_pylist()
    )
    return pa.array(digests, pa.binary())


def _with_name(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        column = column.cast(pa.int64())
    head = f"{_name_of(column.type)} {name}".encode()
    pieces = _joined(pa.scalar(len(head).to_bytes(8, "little") + head, _BYTES), _pieces(column))
    return pc.if_else(column.is_valid(), pieces, _EMPTY)


def _name_of(kind: pa.DataType) -> str:
    """Return the name of a type; types of the same values share it."""
    kind = plain_type(kind)
    if pa.types.is_map(kind):
        return f"map<{_name_of(kind.key_type)},{_name_of(kind.item_type)}>"
    if is_list(kind):
        return f"list<{_name_of(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_name_of(field.type)}' for field in kind)}>"
    return "bytes" if _is_bytes(kind) else str(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    checks = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        pa.types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)


def _pieces(column: pa.Array) -> pa.Array:
    """Return each value as bytes that tell where they end."""
    column = plain_column(column)
    kind = column.type
    if pa.types.is_null(kind):
        return pa.repeat(_NULL, len(column))
    if pa.types.is_map(kind):
        return _pieces(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    if is_list(kind):
        values = _lists(column)
    elif pa.types.is_struct(kind):
        children = map(_pieces, column.flatten())
        values = _joined(_VALUE, *children, pa.repeat(_EMPTY, len(column)))
    elif _is_bytes(kind):
        content = _as_bytes(column).fill_null(b"")
        lengths = pc.binary_length(content).to_numpy(zero_copy_only=False)
        values = _joined(_VALUE, _numbers(lengths), content)
    else:
        values = _joined(_VALUE, _fixed(column))
    return pc.if_else(column.is_valid(), values, _NULL)


def _lists(column: pa.Array) -> pa.Array:
    # The null lists are left out of the values, and have no length.
    values, lengths = plain_column(column.flatten()), list_lengths(column)
    bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    head = _numbers(lengths)
    if not _is_fixed(values.type):
        return _joined(_VALUE, head, _slices(_pieces(values), bounds))
    packed = _joined(_PACKED, head, _slices(_fixed(values), bounds))
    if not values.null_count:
        return packed
    missing = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
    is_packed = missing[bounds[1:]] == missing[bounds[:-1]]
    single = _joined(_VALUE, head, _slices(_pieces(values), bounds))
    return pc.if_else(pa.array(is_packed), packed, single)


def _is_fixed(kind: pa.DataType) -> bool:
    is_other = _is_bytes(kind) or is_list(kind) or pa.types.is_nested(kind)
    return not (is_other or pa.types.is_null(kind))


def _fixed(column: pa.Array) -> pa.Array:
    """Return the values of a type of one size as bytes; a null has any."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    width, data = column.type.bit_width // 8, column.buffers()[1]
    if data is None or not len(column):
        return pa.repeat(_EMPTY, len(column))
    start = column.offset * width
    return _binary(np.arange(len(column) + 1) * width, data.slice(start, len(column) * width))


def _as_bytes(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
    return column.cast(_BYTES)


def _numbers(values: np.ndarray) -> pa.Array:
    """Return whole numbers as 8 bytes each."""
    wide = np.ascontiguousarray(values, np.int64)
    return _binary(np.arange(len(wide) + 1) * 8, pa.py_buffer(wide))


def _slices(pieces: pa.Array, bounds: np.ndarray) -> pa.Array:
    """Join runs of values; ``bounds`` are the first value of each run, and the end."""
    offsets = np.frombuffer(pieces.buffers()[1], np.int64, len(pieces) + 1, 8 * pieces.offset)
    return _binary(offsets[bounds], pieces.buffers()[2])


def _binary(offsets: np.ndarray, data: pa.Buffer | None) -> pa.Array:
    wide = pa.py_buffer(np.ascontiguousarray(offsets, np.int64))
    return pa.Array.from_buffers(_BYTES, len(offsets) - 1, [None, wide, data or pa.py_buffer(b"")])


def _joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, _EMPTY)
