"""Exact neighbours: however the documents are cut, and whatever ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.vectors import nearest as module
from pipelines.vectors.nearest import (
    SCORE_DECIMALS,
    Neighbours,
    merged,
    nearest,
    rank_fusion,
    unit_length,
)


def brute_force(queries, documents, ids, k):
    scores = np.round((queries @ documents.T).astype(float), SCORE_DECIMALS)
    return [
        sorted(zip(-row, ids, strict=True), key=lambda pair: (pair[0], pair[1]))[:k]
        for row in scores
    ]


def as_lists(found: Neighbours, queries: int):
    return [
        [
            (-score, document)
            for query, document, score in zip(
                found.queries, found.documents, found.scores, strict=True
            )
            if query == row
        ]
        for row in range(queries)
    ]


@st.composite
def searches(draw):
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    width = draw(st.integers(1, 4))
    documents = draw(st.integers(1, 40))
    # Few whole values give many equal scores, and zero rows.
    shape = (draw(st.integers(1, 6)), width), (documents, width)
    queries, vectors = (
        unit_length(generator.integers(-1, 2, size).astype(float)) for size in shape
    )
    ids = generator.permutation(1000)[:documents]
    return queries, vectors, ids, draw(st.integers(1, 12)), generator


@settings(deadline=None)
@given(searches())
def test_equals_brute_force_however_it_is_cut(search) -> None:
    queries, documents, ids, k, generator = search
    expected = brute_force(queries, documents, ids, k)
    assert as_lists(nearest(queries, documents, ids, k), len(queries)) == expected
    pieces = np.array_split(generator.permutation(len(ids)), generator.integers(1, 8))
    best = Neighbours.none()
    for piece in pieces:
        best = merged(best, nearest(queries, documents[piece], ids[piece], k), k)
    assert as_lists(best, len(queries)) == expected


def test_blocks_of_queries_change_nothing(monkeypatch) -> None:
    generator = np.random.default_rng(3)
    queries = unit_length(generator.standard_normal((50, 8)))
    documents = unit_length(generator.standard_normal((30, 8)))
    whole = nearest(queries, documents, np.arange(30), 10)
    monkeypatch.setattr(module, "BLOCK_CELLS", 100)
    cut = nearest(queries, documents, np.arange(30), 10)
    np.testing.assert_array_equal(cut.queries, whole.queries)
    np.testing.assert_array_equal(cut.documents, whole.documents)
    # A product's last bits depend on the block, which may tip the rounding.
    np.testing.assert_allclose(cut.scores, whole.scores, atol=1.5 * 10**-SCORE_DECIMALS)
    assert len(whole.queries) == 500


def test_rankings_are_fused_by_reciprocal_ranks_and_ties_stay_in_the_order_of_the_first() -> None:
    # 1/61 + 1/63 is more than 2/62; what only one ranking has counts once.
    assert rank_fusion("abc", "cba", 0.5) == ["a", "c", "b"]
    assert rank_fusion("ab", "cb", 0.5) == ["b", "a", "c"]
    assert rank_fusion("abc", "cba", 0.3) == ["a", "b", "c"]
    assert rank_fusion("abc", "cab", 1) == ["c", "a", "b"]
    assert rank_fusion("", "", 0.5) == []


def test_unit_length_leaves_zero_rows() -> None:
    scaled = unit_length(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(scaled, [[0.6, 0.8], [0.0, 0.0]])
    assert scaled.dtype == np.float32


@pytest.mark.parametrize("k", [2, 5])
def test_what_is_no_number_is_not_found(k) -> None:
    documents = np.array([[np.nan, 0], [0, 1], [np.nan, np.nan], [1, 0]], np.float32)
    queries = np.array([[0, 1], [np.nan, 0]], np.float32)
    found = nearest(queries, documents, np.arange(4), k)
    assert found.queries.tolist() == [0, 0]
    assert found.documents.tolist() == [1, 3]
