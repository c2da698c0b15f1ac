"""The gate on figures alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.evaluation.intervals import Interval
from pipelines.evaluation.pairs import CLASSIFICATION_FIGURES, classification_figures
from pipelines.promotion.gate import Judgement, compared_metrics, evaluations, judge
from pipelines.settings import PromotionSettings

NDCG, SPEARMAN = "retrieval.ndcg@10", "sts/dev.v2.spearman"
METRICS = (NDCG, SPEARMAN)
SETTINGS = PromotionSettings(metrics=METRICS, tolerance={NDCG: 0.5}, minimum={SPEARMAN: 60.0})


def figures(ndcg: float, spearman: float) -> dict[str, dict[str, float]]:
    return {
        "retrieval": {"queries": 5, "ndcg@10": ndcg},
        "sts/dev.v2": {"pairs": 9, "spearman": spearman},
    }


def sets(**roles: str) -> dict[str, dict[str, str]]:
    """What sets of retrieval are, by their names."""
    return {name: {"evaluation": "retrieval_sets", "role": role} for name, role in roles.items()}


HELD_OUT = {
    "retrieval": {"evaluation": "retrieval", "role": "held_out"},
    "retrieval+bm25": {"evaluation": "retrieval", "role": "variant"},
    "retrieval.faq": {"evaluation": "retrieval", "role": "held_out"},
    "geometry": {"evaluation": "geometry", "role": "held_out"},
}
GENERAL = {"general": {"evaluation": "similarity", "role": "guard"}}


@pytest.mark.parametrize(
    ("told", "metrics"),
    [
        ({}, (NDCG,)),
        (HELD_OUT, (NDCG,)),
        (HELD_OUT | GENERAL, (NDCG, "general.spearman")),
        (
            HELD_OUT | sets(support="judged", sales="judged") | GENERAL,
            ("support.ndcg@10", "sales.ndcg@10", "general.spearman"),
        ),
    ],
)
def test_judged_sets_and_guards_are_compared_and_held_out_pairs_stand_in(told, metrics):
    assert compared_metrics(PromotionSettings(), told) == metrics
    assert compared_metrics(SETTINGS, told) == METRICS


def test_where_nothing_can_be_compared_sets_are_to_be_named():
    told = {"geometry": HELD_OUT["geometry"]}
    with pytest.raises(InputError, match=r"^promotion\.metrics: the run has no figure"):
        compared_metrics(PromotionSettings(), told)


def test_what_has_a_limit_is_compared_besides():
    limited = PromotionSettings(minimum={NDCG: 40.0})
    assert compared_metrics(limited, HELD_OUT) == (NDCG,)
    assert compared_metrics(limited, HELD_OUT | sets(support="judged")) == ("support.ndcg@10", NDCG)


def refused(new, served) -> list[str]:
    return [str(found.refusal) for found in judge(SETTINGS, METRICS, new, served) if found.refusal]


@pytest.mark.parametrize(
    ("new", "served", "refusals"),
    [
        (figures(41.2, 70.0), figures(41.7, 70.0), []),
        (figures(1.0, 60.0), None, []),
        (
            figures(41.2, 70.0),
            figures(41.71, 70.0),
            [
                "promotion.tolerance: retrieval.ndcg@10 is 41.2000, "
                "and the model in service has 41.7100. The tolerance is 0.5."
            ],
        ),
        (
            figures(99.0, 59.9),
            None,
            ["promotion.minimum: sts/dev.v2.spearman is 59.9000, and the minimum is 60.0000."],
        ),
        (
            figures(99.0, 69.9999),
            figures(40.0, 70.0),
            [
                "promotion.tolerance: sts/dev.v2.spearman is 69.9999, "
                "and the model in service has 70.0000. The tolerance is 0."
            ],
        ),
    ],
    ids=["within tolerance", "first promotion", "worse", "below the minimum", "no tolerance"],
)
def test_refuses_what_is_worse_by_more_than_the_tolerance(new, served, refusals):
    assert refused(new, served) == refusals


def judged(low: float, high: float, *, tolerance: float = 0.0, required: str = "not_worse"):
    """A model whose difference to the one in service lies in an interval."""
    middle = (low + high) / 2
    interval = Interval(low, high, detectable=1.0)
    return Judgement(NDCG, 50 + middle, 50.0, tolerance, None, interval, required).refusal


@pytest.mark.parametrize(
    ("low", "high", "tolerance", "required", "key"),
    [
        # What may be chance is no reason to refuse it.
        (-2.0, 0.5, 0.0, "not_worse", None),
        (-2.0, -0.5, 0.0, "not_worse", "promotion.tolerance"),
        (-2.0, -0.5, 1.0, "not_worse", None),
        (-2.0, -1.5, 1.0, "not_worse", "promotion.tolerance"),
        (-0.5, 2.0, 0.0, "better", "promotion.required"),
        (0.5, 2.0, 0.0, "better", None),
        (-2.0, -1.5, 1.0, "better", "promotion.required"),
        # Nobody would see it.
        (-2e-7, -1e-8, 0.0, "not_worse", None),
        (1e-8, 2e-7, 0.0, "better", "promotion.required"),
    ],
)
def test_decides_on_the_interval(low, high, tolerance, required, key):
    refusal = judged(low, high, tolerance=tolerance, required=required)
    assert (refusal and refusal.key) == key
    if refusal:
        assert f"(the difference is {low:+.2f} to {high:+.2f})" in str(refusal)


def test_takes_the_interval_of_its_metric():
    intervals = {"retrieval": {"ndcg@10": Interval(-3.0, 1.0, 2.0)}}
    found = judge(SETTINGS, METRICS, figures(40.0, 70.0), figures(41.0, 70.5), intervals)
    # Of the other one there is none: the figures themselves are compared.
    assert [judgement.refusal is None for judgement in found] == [True, False]


def test_must_be_better_where_no_interval_is_known():
    settings = PromotionSettings(required="better")
    same = judge(settings, (NDCG,), figures(41.0, 0.0), figures(41.0, 0.0))
    assert str(same[0].refusal).startswith("promotion.required: ")
    assert judge(settings, (NDCG,), figures(41.1, 0.0), figures(41.0, 0.0))[0].refusal is None
    assert judge(settings, (NDCG,), figures(41.0, 0.0), None)[0].refusal is None


def test_a_figure_that_is_no_number_never_passes():
    assert "is nan" in refused(figures(math.nan, 70.0), None)[0]
    assert "is nan" in refused(figures(math.nan, 70.0), figures(41.0, 70.0))[0]
    assert refused(figures(41.0, 70.0), figures(math.nan, 70.0)) == []


def test_names_what_was_measured_if_a_metric_was_not():
    with pytest.raises(InputError, match=r"`sts/dev.v2.spearman` was not measured. Choose one of"):
        judge(SETTINGS, METRICS, {"retrieval": {"ndcg@10": 1.0}}, None)
    with pytest.raises(InputError, match="Choose one of the metrics that `evaluate`"):
        judge(SETTINGS, METRICS, {}, None)
    assert evaluations(METRICS) == ["retrieval", "sts/dev.v2"]


@given(
    value=st.floats(0, 100), served=st.floats(0, 100), tolerance=st.floats(0, 10), gain=st.floats(0)
)
def test_a_better_model_is_never_refused_where_a_worse_one_passes(value, served, tolerance, gain):
    worse = Judgement(NDCG, value, served, tolerance, None).refusal
    better = Judgement(NDCG, value + gain, served, tolerance, None).refusal
    assert better is None or worse is not None
    assert Judgement(NDCG, served, served, tolerance, None).refusal is None


@pytest.mark.parametrize(
    "metric", ["geometry.alignment", "retrieval.queries", "geometry.pairs", "paws.f1_threshold"]
)
def test_a_figure_that_is_not_better_higher_is_refused(metric):
    evaluation, name = metric.split(".")
    figures = {"retrieval": {"queries": 5.0, "ndcg@10": 50.0}, evaluation: {name: 0.4}}
    with pytest.raises(InputError, match=f"a higher `{metric}` is no better"):
        judge(PromotionSettings(), (metric,), figures, None)


def test_a_model_that_gives_no_numbers_is_refused():
    cosines, labels = np.full(10, np.nan), np.array([1] * 5 + [0] * 5)
    measured = {"paws": classification_figures(cosines, labels)}
    for name in (figure.name for figure in CLASSIFICATION_FIGURES):
        if not name.endswith("_threshold"):
            [judgement] = judge(PromotionSettings(), (f"paws.{name}",), measured, None)
            assert "is nan" in str(judgement.refusal)
