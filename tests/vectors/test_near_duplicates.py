"""Near-duplicates tile by tile, against brute force, and pairs of files by their number."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import PipelineError
from pipelines.vectors import near_duplicates as duplicates
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.near_duplicates import (
    alike,
    duplicate_groups,
    near_duplicates,
    pair_of,
    pairs_of,
)
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.store import Block, open_table

ROWS, WIDTH, THRESHOLD = 97, 5, 0.8
FILES, TASKS = 12, 40


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return unit_length(np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype(np.float32))


def brute_force(vectors, positions) -> dict[tuple[int, int], float]:
    cosines = np.round((vectors @ vectors.T).astype(float), 6)
    left, right = np.nonzero(np.triu(cosines >= THRESHOLD, 1))
    pairs = zip(positions[left].tolist(), positions[right].tolist(), strict=True)
    return dict(zip(pairs, cosines[left, right].tolist(), strict=True))


def told(batches) -> dict[tuple[int, int], float]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = {(row["left"], row["right"]): row["cosine"] for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("tile_rows", [1, 7, 32, 96, 97, 98, 5000])
def test_tiles_of_any_size_find_what_brute_force_finds(vectors, tile_rows) -> None:
    positions = np.arange(ROWS) * 3 + 5
    expected = brute_force(vectors, positions)
    assert len(expected) > 100
    block = Block(vectors, positions)
    found = told(alike(block, block, THRESHOLD, tile_rows))
    assert found.keys() == expected.keys()
    for pair, cosine in found.items():
        assert cosine == pytest.approx(expected[pair], abs=1.5e-6)


@pytest.mark.parametrize("tile_rows", [4, 13])
def test_blocks_are_compared_in_whatever_order_they_come(vectors, tile_rows) -> None:
    positions = np.arange(ROWS)
    blocks = [Block(vectors[rows], positions[rows]) for rows in (slice(0, 41), slice(41, ROWS))]
    found = [
        told(alike(first, second, THRESHOLD, tile_rows)) for first in blocks for second in blocks
    ]
    assert found[2] == {}
    merged = found[0] | found[1] | found[3]
    assert merged.keys() == brute_force(vectors, positions).keys()
    assert sum(map(len, found)) == len(merged)


def test_a_cosine_counts_as_it_is_rounded() -> None:
    angle = np.arccos(0.8999996)
    turned = np.array([[1, 0], [np.cos(angle), np.sin(angle)]])
    block = Block(turned, np.arange(2))
    assert told(alike(block, block, 0.9)) == {(0, 1): 0.9}
    assert told(alike(block, block, 0.900001)) == {}


def test_a_number_stands_for_one_pair_of_files() -> None:
    found = [pair_of(number) for number in range(pairs_of(40))]
    assert found[:4] == [(0, 0), (0, 1), (1, 1), (0, 2)]
    assert set(found) == {(left, right) for right in range(40) for left in range(right + 1)}
    # Where a square root of floating point would be off by one.
    for files in (10**5, 10**9 + 7):
        assert pair_of(pairs_of(files) - 1) == (files - 1, files - 1)
        assert pair_of(pairs_of(files)) == (0, files)


@pytest.fixture
def table(vectors, tmp_path, monkeypatch):
    """Of several files, one of them empty: more pairs than tasks."""
    monkeypatch.setattr(duplicates, "MAX_TASKS", TASKS)
    column = vector_array(vectors[:94], np.ones(94, bool))
    whole = pa.table({"embedding": column})
    for number in range(FILES):
        pq.write_table(whole.slice(9 * number, 9), tmp_path / f"part-{number:03d}.parquet")
    return open_table(tmp_path)


def test_many_files_are_compared_by_a_bounded_number_of_tasks(spark, table, vectors) -> None:
    frame = near_duplicates(spark, table, THRESHOLD)
    assert pairs_of(len(table.files)) > TASKS
    assert frame.rdd.getNumPartitions() == TASKS
    batches = duplicates._compare_numbers(
        [pa.RecordBatch.from_pydict({"id": list(range(pairs_of(FILES)))})],
        table=table,
        threshold=THRESHOLD,
    )
    assert told(batches).keys() == brute_force(vectors[:94], np.arange(94)).keys()


def test_what_fails_on_an_executor_is_one_line(spark, table, tmp_path) -> None:
    pairs = near_duplicates(spark, table, THRESHOLD).limit(9)
    for number in range(FILES):
        (tmp_path / f"part-{number:03d}.parquet").unlink()
    with pytest.raises(PipelineError) as caught:
        duplicate_groups(pairs)
    assert str(caught.value).startswith(
        "the search for near-duplicates failed on an executor: FileNotFoundError: "
    )
    assert "part-000.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)
