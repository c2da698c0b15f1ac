"""Reciprocal rank fusion, by hand."""

import numpy as np

from pipelines.evaluation.nearest import Neighbours
from pipelines.lexical.fusion import ranks_of, reciprocal_rank_fusion


def ranking(*found: tuple[int, int]) -> Neighbours:
    """Of queries and documents, the best first; scores decide nothing."""
    queries, documents = np.array(found, np.int64).reshape(-1, 2).T
    return Neighbours(queries, documents, np.zeros(len(found)))


def fused(left: Neighbours, right: Neighbours, k: int) -> list[tuple[int, int, float]]:
    found = reciprocal_rank_fusion([left, right], k)
    return list(
        zip(found.queries.tolist(), found.documents.tolist(), found.scores.tolist(), strict=True)
    )


def test_ranks_are_summed_by_their_reciprocals() -> None:
    left = ranking((3, 10), (3, 20), (3, 30))
    right = ranking((3, 30), (3, 40), (3, 10))
    assert fused(left, right, 9) == [
        # 1st and 3rd, and 3rd and 1st: of equal sums the lower id wins.
        (3, 10, 1 / 61 + 1 / 63),
        (3, 30, 1 / 63 + 1 / 61),
        # 2nd of one ranking each.
        (3, 20, 1 / 62),
        (3, 40, 1 / 62),
    ]
    assert fused(left, right, 9) == fused(right, left, 9)
    assert [document for _, document, _ in fused(left, right, 2)] == [10, 30]


def test_queries_are_ranked_apart_and_may_be_missing_in_a_ranking() -> None:
    left = ranking((-5, 1), (-5, 2), (8, 2))
    right = ranking((8, 1), (9, 7))
    assert [line[:2] for line in fused(left, right, 5)] == [
        (-5, 1),
        (-5, 2),
        (8, 1),
        (8, 2),
        (9, 7),
    ]
    assert ranks_of(left).tolist() == [1, 2, 1]


def test_what_only_one_ranking_has_keeps_its_order() -> None:
    nothing = Neighbours.none()
    left = ranking((0, 5), (0, 3), (0, 4))
    assert [document for _, document, _ in fused(left, nothing, 3)] == [5, 3, 4]
    assert fused(nothing, nothing, 3) == []
