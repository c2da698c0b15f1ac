"""Arrow types that hold the same values are the same to every reader."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.arrow_columns import (
    as_text,
    column_for_spark,
    concatenated,
    is_list,
    is_list_of_values,
    is_plain,
    is_read_by_spark,
    is_text,
    type_for_spark,
)

TEXTS = ["pump", "öven", None]
AS_BYTES = [text and text.encode() for text in TEXTS]
RUNS = pc.run_end_encode(pa.array(TEXTS))
STORED = [
    pa.array(TEXTS),
    pa.array(TEXTS, pa.large_string()),
    pa.array(TEXTS, pa.string_view()),
    pa.array(TEXTS).dictionary_encode(),
    pa.array(TEXTS, pa.large_string()).dictionary_encode(),
    pa.array(AS_BYTES, pa.binary()),
    pa.array(AS_BYTES, pa.large_binary()),
    pa.array(AS_BYTES, pa.binary_view()),
    pa.array(AS_BYTES, pa.binary()).dictionary_encode(),
    RUNS,
]
LISTS = [
    pa.list_(pa.string()),
    pa.large_list(pa.string()),
    pa.list_(pa.string(), 2),
    pa.list_view(pa.string()),
    pa.large_list_view(pa.string_view()),
]
TIME = datetime.time(1, 2, 3)


@pytest.mark.parametrize("column", STORED, ids=lambda column: str(column.type))
def test_texts_however_they_are_stored(column) -> None:
    assert is_text(column.type)
    assert is_plain(column.type)
    assert as_text(column).to_pylist() == TEXTS
    assert as_text(pa.chunked_array([column, column])).to_pylist() == TEXTS * 2
    assert column_for_spark(column).cast(pa.string()).to_pylist() == TEXTS


def test_texts_that_are_missing_or_no_utf8() -> None:
    assert is_text(pa.null())
    assert as_text(pa.nulls(2)).to_pylist() == [None, None]
    assert as_text(pa.array([b"a", b"\xff"], pa.binary_view())).to_pylist() == ["a", "\ufffd"]
    assert as_text(pa.array([b"ab", b"c\xff"], pa.binary(2))).to_pylist() == ["ab", "c\ufffd"]
    others = (pa.int64(), pa.bool_(), pa.float16(), pa.date32(), pa.decimal128(5, 0), LISTS[0])
    assert not any(map(is_text, others))


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_lists_however_they_are_stored(kind) -> None:
    assert is_list(kind)
    assert is_list_of_values(kind)
    assert not is_plain(kind)
    assert type_for_spark(kind) == pa.list_(pa.string())
    column = pa.array([["a", "b"], None, ["c", "d"]], kind)
    assert column_for_spark(column).to_pylist() == column.to_pylist()
    assert column_for_spark(column[1:]).to_pylist() == [None, ["c", "d"]]
    assert not is_list_of_values(pa.list_(kind))


@pytest.mark.parametrize(
    ("column", "is_read", "values"),
    [
        (pa.array([1, None], pa.uint8()), True, pa.array([1, None], pa.int16())),
        (pa.array([2**32 - 1], pa.uint32()), True, pa.array([2**32 - 1], pa.int64())),
        (pa.array([2**64 - 1], pa.uint64()), True, [decimal.Decimal(2**64 - 1)]),
        (pa.array(np.array([0.5], np.float16)), False, pa.array([0.5], pa.float32())),
        (pa.array([TIME], pa.time64("us")), False, ["01:02:03.000000"]),
        (pa.array([decimal.Decimal(7)], pa.decimal256(50, 0)), False, ["7"]),
        (pa.array([decimal.Decimal(7)], pa.decimal128(38, 0)), True, [decimal.Decimal(7)]),
        (pa.array([True, None]), True, [True, None]),
        (pa.nulls(1), False, pa.nulls(1, pa.string())),
        (pa.array([[0.5]], pa.list_(pa.float16())), False, [[0.5]]),
        (pa.array([datetime.timedelta(seconds=5)]), True, [5_000_000]),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_numbers_and_times_as_spark_has_them(column, is_read, values) -> None:
    assert is_read_by_spark(column.type) == is_read
    found = column_for_spark(column)
    assert found.to_pylist() == pa.array(values).to_pylist()
    assert found.type == (values.type if isinstance(values, pa.Array) else found.type)
    assert is_read_by_spark(found.type)


def test_rows_of_files_whose_types_differ() -> None:
    tables = [pa.table({"text": column, "id": [1, 2, 3]}) for column in STORED]
    found = concatenated(tables)
    assert found["text"].to_pylist() == TEXTS * len(tables)
    assert found["id"].to_pylist() == [1, 2, 3] * len(tables)
    assert concatenated(tables[3:4]).schema == tables[3].schema


def test_lists_of_files_whose_types_differ() -> None:
    kinds = (pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 2))
    found = concatenated([pa.table({"x": pa.array([[1, 2]], kind)}) for kind in kinds])
    assert found["x"].to_pylist() == [[1.0, 2.0]] * len(kinds)


def test_no_rows_of_files_whose_types_differ() -> None:
    kinds = (pa.string(), pa.large_string())
    tables = [pa.table({"x": pa.chunked_array([], kind)}) for kind in kinds]
    assert concatenated(tables).num_rows == 0
