"""Search and near-duplicates in tables of vectors, against brute force."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.exact import search_table
from pipelines.vectors.index import build_index, has_index, search_index
from pipelines.vectors.near_duplicates import duplicate_groups, near_duplicates
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.store import open_table, read_blocks, rows_at

ROWS, WIDTH, FILES = 3000, 24, 3
LOWEST_RECALL = 0.95


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Clustered, as embeddings are; rows 10, 20 and 2000 are alike, so are 5 and 2999."""
    generator = np.random.default_rng(8)
    centres = generator.standard_normal((60, WIDTH))
    found = centres[generator.integers(0, 60, ROWS)] + 0.7 * generator.standard_normal(
        (ROWS, WIDTH)
    )
    for left, right in ((10, 20), (20, 2000), (5, 2999)):
        found[right] = found[left] + 1e-3 * generator.standard_normal(WIDTH)
    return unit_length(found)


@pytest.fixture(scope="module")
def table(vectors, tmp_path_factory):
    """Three files; row 7 has no vector."""
    folder = tmp_path_factory.mktemp("vectors")
    present = np.ones(ROWS, bool)
    present[7] = False
    column = vector_array(vectors[present], present)
    whole = pa.table({"text": [f"text {n}" for n in range(ROWS)], "embedding": column})
    size = ROWS // FILES
    for number in range(FILES):
        pq.write_table(whole.slice(number * size, size), folder / f"part-{number}.parquet")
    return open_table(folder)


def exact(vectors, queries, k):
    scores = np.round((queries @ vectors.T).astype(float), 6)
    scores[:, 7] = -2
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def test_exact_search_equals_brute_force(spark, table, vectors) -> None:
    queries = vectors[100:140] + 0.1
    expected = exact(vectors, unit_length(queries), 9)
    for session in (None, spark):
        found = search_table(table, queries, 9, session)
        np.testing.assert_array_equal(found.documents.reshape(40, 9), expected)
    assert (found.scores <= 1).all()
    everything = search_table(table, queries[:1], 2 * ROWS)
    assert len(everything.documents) == ROWS - 1
    with pytest.raises(InputError, match="queries of 3 values do not fit vectors of 24"):
        search_table(table, queries[:, :3], 1)


def test_a_folder_of_the_user_where_the_index_is_to_be_stays(vectors, tmp_path) -> None:
    pytest.importorskip("usearch")
    rows = pa.table({"embedding": vector_array(vectors[:9], np.ones(9, bool))})
    pq.write_table(rows, tmp_path / "rows.parquet")
    (tmp_path / "_index").mkdir()
    (tmp_path / "_index" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"^embedding\.output: .*_index holds other files \(notes"):
        build_index(None, open_table(tmp_path))
    assert (tmp_path / "_index" / "notes.txt").read_text() == "mine"


def test_the_index_finds_nearly_all_that_is_nearest(spark, table, vectors) -> None:
    pytest.importorskip("usearch")
    with pytest.raises(InputError, match="has no index"):
        search_index(table, vectors[:1], 1)
    build_index(spark, table)
    assert has_index(table)
    queries = unit_length(vectors[::15] + 0.05)
    truth = exact(vectors, queries, 10)
    for session in (None, spark):
        found = search_index(table, queries, 10, session).documents.reshape(-1, 10)
        recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, truth, strict=True)])
        assert recall >= LOWEST_RECALL
    path = table.files[0].path
    pq.write_table(pq.read_table(path), path)
    assert not has_index(open_table(table.folder))


@pytest.fixture(scope="module")
def equals(spark, tmp_path_factory):
    """1,600 rows in four groups of equal vectors, with an index."""
    pytest.importorskip("usearch")
    folder = tmp_path_factory.mktemp("equals")
    four = unit_length(np.random.default_rng(0).standard_normal((4, 8)))
    column = vector_array(np.repeat(four, 400, axis=0).astype(np.float32), np.ones(1600, bool))
    pq.write_table(pa.table({"embedding": column}), folder / "part-0.parquet")
    table = open_table(folder)
    build_index(spark, table)
    return table, four


@pytest.mark.parametrize("queries", [slice(0, 4), slice(0, 1), slice(0, 0)])
def test_the_index_gives_no_rows_that_do_not_exist(equals, queries) -> None:
    table, four = equals
    found = search_index(table, four[queries], 300)
    assert np.isfinite(found.scores).all()
    assert 0 <= found.documents.min(initial=0) <= found.documents.max(initial=0) < 1600
    pairs = list(zip(found.queries.tolist(), found.documents.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    true = np.round((four[queries] @ four.T).astype(float), 6)
    # The index holds half precision.
    np.testing.assert_allclose(found.scores, true[found.queries, found.documents // 400], atol=2e-3)
    assert set(found.queries) == set(range(len(four[queries])))


def test_a_search_that_fails_on_an_executor_is_one_line(spark, equals, tmp_path) -> None:
    table, four = equals
    path = tmp_path / "part-0.parquet"
    pq.write_table(pq.read_table(table.files[0].path), path)
    moved = open_table(tmp_path)
    build_index(spark, moved)
    (tmp_path / "_index" / "part-0.usearch").write_bytes(b"no index")
    with pytest.raises(PipelineError, match=r"^the search failed on an executor: \S+: .+") as told:
        search_index(moved, four, 3, spark)
    assert "\n" not in str(told.value)
    path.unlink()
    with pytest.raises(PipelineError, match=r"^the search failed .* FileNotFoundError: .*part-0"):
        search_table(moved, four, 3, spark)
    with pytest.raises(PipelineError, match=r"^building the index failed .* FileNotFoundError"):
        build_index(spark, moved)
    assert (tmp_path / "_index" / "part-0.usearch").read_bytes() == b"no index"


def test_near_duplicates_are_found_once_each(spark, table, vectors) -> None:
    pairs = near_duplicates(spark, table, 0.999)
    found = {(row["left"], row["right"]): row["cosine"] for row in pairs.collect()}
    assert found.keys() == {(10, 20), (20, 2000), (10, 2000), (5, 2999)}
    assert all(0.999 <= cosine <= 1 for cosine in found.values())
    assert duplicate_groups(pairs) == {5: [5, 2999], 10: [10, 20, 2000]}
    scores = np.round((vectors @ vectors.T).astype(float), 6)
    scores[7] = scores[:, 7] = 0
    assert near_duplicates(spark, table, 0.9).count() == (np.triu(scores, 1) >= 0.9).sum()
    assert duplicate_groups(pairs.where("cosine > 2")) == {}
    with pytest.raises(InputError, match="threshold: 0 is not a similarity"):
        near_duplicates(spark, table, 0)


def test_rows_by_position(table) -> None:
    found = rows_at(table, [2999, 0, 1500, 0], ["text"]).column("text").to_pylist()
    assert found == ["text 2999", "text 0", "text 1500", "text 0"]
    assert rows_at(table, [], ["text"]).num_rows == 0


def test_blocks_are_small_and_leave_gaps_out(table, monkeypatch) -> None:
    monkeypatch.setattr("pipelines.vectors.store.BLOCK_BYTES", 4 * WIDTH * 300)
    blocks = list(read_blocks(table, table.files))
    assert max(len(block.positions) for block in blocks) == 300
    positions = np.concatenate([block.positions for block in blocks])
    np.testing.assert_array_equal(positions, np.delete(np.arange(ROWS), 7))


def test_what_is_no_table_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        open_table(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no rows"):
        open_table(tmp_path)
    pq.write_table(pa.table({"text": ["a"], "embedding": [1.0]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"`embedding` holds double\. Name a column of vectors"):
        open_table(tmp_path)
    with pytest.raises(
        InputError, match=r"no column `v`\. Name one of its columns: text, embedding"
    ):
        open_table(tmp_path, "v")
    (tmp_path / "_plan.json").write_text(json.dumps({}))
    with pytest.raises(InputError, match="is not finished"):
        open_table(tmp_path)
