"""The figures against other people's code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from pipelines.evaluation.pairs import pearson, spearman
from pipelines.evaluation.retrieval import (
    ndcg_at,
    retrieval_metrics,
)

# Documents that were found, and gains of those that are relevant, some of which were not.
TREC = [
    (
        "18 7 23 16 22 21 6 10 24 26 33 15 37 8 13 0 27 36 34 1 31 17 2 4 9",
        {33: 1},
    ),
    (
        "13 23 8 34 11 32 4 1 19 30 6 28 15 14 20 27 25 35 21 33 22 12 3 39 2",
        {19: 3, 21: 1, 0: 1},
    ),
    (
        "26 5 7 27 14 21 17 39 1 33 10 30 19 2 22 18 9 8 37 35 25 34 36 32 20",
        {18: 1, 24: 1, 4: 2, 42: 2, 5: 3, 13: 1, 37: 3},
    ),
    (
        "25 33 35 30 0 16 29 10 7 37 4 26 28 39 27 38 22 18 3 1 13 2 34 32 31",
        {35: 3, 41: 1, 39: 1, 42: 1, 4: 1, 17: 2, 13: 2, 38: 1, 1: 1, 40: 2, 43: 1, 26: 3},
    ),
    (
        "39 7 26 6 28 3 36 24 32 5 18 12 13 16 17 29 11 14 27 23 4 10 9 25 15",
        {36: 3, 0: 3},
    ),
    (
        "13 6 8 30 35 19 28 39 10 27 34 1 11 3 32 15 31 9 38 20 33 2 17 24 25",
        {33: 3, 10: 1, 21: 2, 42: 3, 28: 2},
    ),
]
# Of pytrec_eval-terrier 0.5.11 on these: map_cut, ndcg_cut and recall, times 100.
TREC_FIGURES = {
    "map@5": 1.6534391534391533,
    "map@10": 4.678130511463844,
    "map@20": 9.29890356151321,
    "ndcg@3": 9.595878144761254,
    "ndcg@10": 16.077523805550473,
    "ndcg@20": 26.635227931836236,
    "recall@5": 3.7698412698412696,
    "recall@20": 58.25396825396825,
    "mrr@25": 22.017797017797014,
}


def test_all_equal_trec_eval() -> None:
    ranked = {place: [*map(int, found.split())] for place, (found, _) in enumerate(TREC)}
    relevant = {place: gains for place, (_, gains) in enumerate(TREC)}
    figures = retrieval_metrics(ranked, relevant, [*TREC_FIGURES])
    assert figures == pytest.approx(TREC_FIGURES, rel=1e-12)


def test_a_query_that_found_nothing_counts_as_zero() -> None:
    figures = retrieval_metrics({1: [10]}, {1: {10}, 2: {20}})
    assert figures == {"ndcg@10": 50.0, "mrr@10": 50.0, "recall@1": 50.0, "recall@10": 50.0}


@settings(deadline=None)
@given(st.permutations(range(25)), st.sets(st.integers(0, 24), min_size=1), st.integers(1, 25))
def test_ndcg_equals_scikit_learn(ranked: list[int], relevant: set[int], k: int) -> None:
    truth = np.array([[float(item in relevant) for item in range(25)]])
    scores = np.array([[-float(ranked.index(item)) for item in range(25)]])
    assert ndcg_at(ranked, relevant, k) == pytest.approx(ndcg_score(truth, scores, k=k))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.permutations(range(15)), st.sets(st.integers(0, 14), min_size=1)),
        min_size=1,
        max_size=8,
    )
)
def test_all_equal_sentence_transformers(cases: list[tuple[list[int], set[int]]]) -> None:
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    texts = {str(item): "text" for item in range(15)}
    evaluator = InformationRetrievalEvaluator(
        {str(query): "text" for query in range(len(cases))},
        texts,
        {str(query): set(map(str, relevant)) for query, (_, relevant) in enumerate(cases)},
    )
    expected = evaluator.compute_metrics(
        [
            [{"corpus_id": str(item), "score": -rank} for rank, item in enumerate(ranked)]
            for ranked, _ in cases
        ]
    )
    figures = retrieval_metrics(
        {query: ranked[:10] for query, (ranked, _) in enumerate(cases)},
        {query: relevant for query, (_, relevant) in enumerate(cases)},
    )
    for name, value in figures.items():
        kind, _, k = name.partition("@")
        assert value == pytest.approx(100 * expected[f"{kind}@k"][int(k)])


def test_correlations_by_hand() -> None:
    left, right = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])
    # 1 - 6 * (1 + 1) / (4 * 15)
    assert spearman(left, right) == pytest.approx(0.8)
    assert pearson(left, right) == pytest.approx(0.8)
    assert spearman(left, np.exp(5 * left)) == pytest.approx(1.0)
    assert pearson(left, np.exp(5 * left)) < 0.9


def test_a_constant_vector_orders_nothing() -> None:
    left, right = np.array([1.0, 2.0, 3.0]), np.full(3, 0.5)
    assert spearman(left, right) == 0.0
    assert pearson(left, right) == 0.0
