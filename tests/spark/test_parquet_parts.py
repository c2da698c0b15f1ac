"""Row groups of the files that tasks hand to one another."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.spark import parquet_parts
from pipelines.spark.parquet_parts import gathered


def batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array(range(first, first + rows), pa.int64())})


@given(st.lists(st.integers(0, 40), max_size=30))
def test_gathered_batches_hold_the_same_rows_and_are_large(sizes):
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_parts, "MAX_ROWS", 32)
        found = list(gathered(map(batch, starts, sizes)))
    numbers = [number for one in found for number in one.column("number").to_pylist()]
    assert numbers == list(range(sum(sizes)))
    assert all(one.num_rows >= 32 for one in found[:-1])
    assert all(one.num_rows for one in found)


def test_long_texts_are_gathered_by_their_bytes(monkeypatch):
    monkeypatch.setattr(parquet_parts, "BATCH_BYTES", 3 * 800)
    found = list(gathered(batch(0, 100) for _ in range(7)))
    assert [one.num_rows for one in found] == [300, 300, 100]
