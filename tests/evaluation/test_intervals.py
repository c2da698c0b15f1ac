"""How far a difference is to be from 0 to be more than chance."""

import numpy as np
import pytest
from scipy import stats

from pipelines.evaluation.intervals import FEWEST_QUERIES, margin, retrieval_margins
from pipelines.evaluation.retrieval import Queries, Retrieved, retrieval_metrics

RANDOM = np.random.default_rng(5)


def test_the_margin_is_that_of_the_paired_t_test():
    before, after = RANDOM.random(50), RANDOM.random(50)
    interval = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert margin(before, after) == pytest.approx((interval.high - interval.low) / 2)


def test_nineteen_of_twenty_intervals_hold_the_true_difference():
    hits, tries, queries = 0, 2000, 142
    for _ in range(tries):
        # Ranks of a found document, as recall@1 sees them: few queries change at all.
        change = RANDOM.choice([-1.0, 0.0, 1.0], queries, p=[0.05, 0.85, 0.10])
        hits += abs(change.mean() - 0.05) <= margin(np.zeros(queries), change)
    assert hits / tries == pytest.approx(0.95, abs=0.015)


def test_too_few_queries_and_what_is_no_number_have_none():
    few = np.zeros(FEWEST_QUERIES - 1)
    assert margin(few, few + 1) is None
    assert margin(np.zeros(50), np.full(50, np.nan)) is None
    assert margin(np.zeros(50), np.zeros(50)) == 0


def found(ranked: dict[int, list[int]]) -> Retrieved:
    relevant = {key: {key: 1.0} for key in ranked}
    return Retrieved(
        Queries(np.array(sorted(ranked)), np.zeros((len(ranked), 2)), relevant), ranked
    )


def test_figures_of_one_query_are_compared_with_those_of_the_same():
    keys = list(range(40))
    first = {key: [key] if key % 2 else [-1, key] for key in keys}
    # The same ranks, and the queries in another order.
    again = {key: first[key] for key in reversed(keys)}
    before, after = found(first), found(again)
    margins = retrieval_margins({"retrieval": before}, {"retrieval": after})
    assert margins == {
        "retrieval": dict.fromkeys(retrieval_metrics(first, before.queries.relevant), 0.0)
    }
    assert retrieval_margins({"retrieval": before}, {}) == {}
