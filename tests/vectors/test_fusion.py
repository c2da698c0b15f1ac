"""Vectors and words as one ranking, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.vectors.bm25 import WORD_WEIGHT, ranks_of, weighted_fusion
from pipelines.vectors.nearest import Neighbours, best_of


def ranking(*found: tuple[int, int, float]) -> Neighbours:
    """Of queries, documents and scores, the best first."""
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    queries, documents = (np.array(one, np.int64) for one in columns[:2])
    return Neighbours(queries, documents, np.array(columns[2], np.float64))


def fused(by_vectors: Neighbours, by_words: Neighbours, k: int) -> list[tuple[int, int, float]]:
    found = weighted_fusion(by_vectors, by_words, k)
    scores = found.scores.round(12).tolist()
    return list(zip(found.queries.tolist(), found.documents.tolist(), scores, strict=True))


def test_words_add_a_tenth_at_most() -> None:
    by_vectors = ranking((3, 10, 0.8), (3, 20, 0.75), (3, 30, 0.6))
    by_words = ranking((3, 30, 8.0), (3, 40, 6.0), (3, 20, 4.0))
    assert WORD_WEIGHT == 0.1
    assert fused(by_vectors, by_words, 9) == [
        # Of equal sums the lower id wins.
        (3, 10, 0.8),
        (3, 20, 0.8),
        (3, 30, 0.7),
        # Its cosine is at most the lowest that is known.
        (3, 40, 0.675),
    ]
    assert [document for _, document, _ in fused(by_vectors, by_words, 2)] == [10, 20]


def test_queries_are_ranked_apart_and_may_be_missing_in_a_ranking() -> None:
    by_vectors = ranking((-5, 1, 0.5), (-5, 2, 0.4), (8, 2, -0.2))
    by_words = ranking((8, 1, 5.0), (9, 7, 90.0))
    assert fused(by_vectors, by_words, 5) == [
        (-5, 1, 0.5),
        (-5, 2, 0.4),
        (8, 1, -0.1),
        (8, 2, -0.2),
        (9, 7, 0.1),
    ]
    assert ranks_of(by_vectors).tolist() == [1, 2, 1]


def test_what_only_one_ranking_has_keeps_its_order() -> None:
    nothing = Neighbours.none()
    found = ranking((0, 5, 0.9), (0, 3, 0.8), (0, 4, 0.7))
    assert [document for _, document, _ in fused(found, nothing, 3)] == [5, 3, 4]
    assert [document for _, document, _ in fused(nothing, found, 2)] == [5, 3]
    assert fused(nothing, nothing, 3) == []


scored = st.dictionaries(
    st.tuples(st.integers(-3, 3), st.integers(0, 12)), st.floats(0.125, 1.0), max_size=30
)


@given(by_vectors=scored, by_words=scored)
def test_each_document_is_found_once_with_a_sum_within_its_bounds(by_vectors, by_words) -> None:
    vectors, words = (
        best_of(ranking(*((*key, score) for key, score in one.items())), 99)
        for one in (by_vectors, by_words)
    )
    found = {(query, document): score for query, document, score in fused(vectors, words, 99)}
    assert found.keys() == by_vectors.keys() | by_words.keys()
    for key, score in found.items():
        most = max((one for other, one in by_words.items() if other[0] == key[0]), default=1.0)
        known = [one for other, one in by_vectors.items() if other[0] == key[0]]
        cosine = by_vectors.get(key, min(known, default=0.0))
        expected = cosine + WORD_WEIGHT * by_words.get(key, 0.0) / most
        assert score == pytest.approx(expected, abs=1e-9)
