"""How sure a difference between two models is: paired bootstrap over the items of a set.

Both models are measured on the same queries (or pairs of texts). These are drawn again with
replacement many times, and the difference of the figure is taken each time: of queries like these,
the true difference lies in the interval with a probability of :data:`CONFIDENCE`.

Sources: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993; for retrieval Smucker,
Allan and Carterette, "A comparison of statistical significance tests for information retrieval
evaluation", CIKM 2007. The percentiles are those of Hesterberg, "What teachers should know about
the bootstrap", The American Statistician 69(4), 2015 ("expanded percentile"), without which
intervals of a few dozen queries are too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.observations import Observations

CONFIDENCE = 0.95
BETTER, WORSE, CANNOT_BE_TOLD = "better", "worse", "cannot be told"
FEWEST_ITEMS = 10
"""With fewer, the spread of the differences is not known well enough."""
POWER = 0.8
"""Of the smallest difference that can be shown."""
_RESAMPLES = 9999
_DRAWN_AT_A_TIME = 2_000_000
# A correlation takes as long as thousands of means do.
_MOST_OF_PAIRS, _FEWEST_OF_PAIRS = 999, 200
_DRAWN_OF_PAIRS = 5_000_000
_SEED = 17

Measure = Callable[[np.ndarray, np.ndarray], Mapping[str, float]]
"""Figures of the cosines of pairs, and of the numbers that people gave them."""


@dataclass(frozen=True)
class Interval:
    """Where the difference of a figure between two models lies, in points.

    Attributes:
        low: Lower end.
        high: Upper end.
        detectable: The smallest true difference that so many items of such a spread show as one in
            four of five tries (:data:`POWER`).
    """

    low: float
    high: float
    detectable: float

    def told(self, *, lower_is_better: bool = False) -> str:
        """`better` or `worse`; `cannot be told` where 0 is inside."""
        if self.low <= 0 <= self.high:
            return CANNOT_BE_TOLD
        return BETTER if (self.low > 0) != lower_is_better else WORSE


def mean_intervals(
    before: Observations, after: Observations, confidence: float = CONFIDENCE
) -> dict[str, Interval]:
    """The intervals of the differences of means over the items, by the name of the values.

    Args:
        before: Of a model.
        after: Of another, on the same items.
        confidence: Of an interval.

    Returns:
        Without values of which one is no number; nothing of fewer than :data:`FEWEST_ITEMS`.
    """
    from scipy.stats import bootstrap

    _check_same(before, after)
    both = [name for name in before.values if name in after.values]
    differences = {name: after.values[name] - before.values[name] for name in both}
    known = {name: one for name, one in differences.items() if np.isfinite(one).all()}
    count = len(before.items)
    if count < FEWEST_ITEMS or not known:
        return {}
    drawn = bootstrap(
        (np.stack(list(known.values())),),
        np.mean,
        axis=1,
        n_resamples=_RESAMPLES,
        batch=max(_DRAWN_AT_A_TIME // (count * len(known)), 1),
        confidence_level=_expanded(confidence, count),
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    ends = drawn.confidence_interval
    errors = np.atleast_1d(drawn.standard_error)
    return _named(list(known), ends.low, ends.high, errors, confidence)


def pair_intervals(
    measure: Measure,
    before: Observations,
    after: Observations,
    confidence: float = CONFIDENCE,
) -> dict[str, Interval]:
    """The same of figures that are no means, such as correlations.

    Args:
        measure: The figures of the values `cosine` and `score`.
        before: Of a model, with these values.
        after: Of another, on the same pairs.
        confidence: Of an interval.

    Returns:
        By figure; nothing where all numbers of some draw are alike, since too few of them differ.
    """
    from scipy.stats import bootstrap

    _check_same(before, after)
    count, scores = len(before.items), before.values["score"]
    cosines = [one.values["cosine"] for one in (before, after)]
    if count < FEWEST_ITEMS or not all(np.isfinite(one).all() for one in cosines):
        return {}
    names = list(measure(cosines[0], scores))

    def differences(places: np.ndarray) -> np.ndarray:
        if np.ptp(scores[places]) == 0:
            return np.full(len(names), np.nan)
        old, new = (measure(one[places], scores[places]) for one in cosines)
        return np.array([new[name] - old[name] for name in names])

    drawn = bootstrap(
        (np.arange(count),),
        differences,
        vectorized=False,
        n_resamples=min(max(_DRAWN_OF_PAIRS // count, _FEWEST_OF_PAIRS), _MOST_OF_PAIRS),
        confidence_level=_expanded(confidence, count),
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    ends = drawn.confidence_interval
    return _named(names, ends.low, ends.high, drawn.standard_error, confidence)


def _expanded(confidence: float, count: int) -> float:
    """The share of the draws that an interval spans, so that few items make it no narrower."""
    from scipy.stats import norm, t

    quantile = t.ppf((1 + confidence) / 2, count - 1) * math.sqrt(count / (count - 1))
    return float(2 * norm.cdf(quantile) - 1)


def _named(
    names: list[str], low: np.ndarray, high: np.ndarray, errors: np.ndarray, confidence: float
) -> dict[str, Interval]:
    """Intervals by name, without those that are not known.

    The smallest difference to be shown is that of a z test: Cohen, "Statistical power analysis for
    the behavioral sciences", 1988.
    """
    from scipy.stats import norm

    quantiles = norm.ppf((1 + confidence) / 2) + norm.ppf(POWER)
    found = {
        name: Interval(float(one), float(other), float(quantiles * error))
        for name, one, other, error in zip(names, low, high, errors, strict=True)
    }
    return {name: one for name, one in found.items() if math.isfinite(one.low + one.high)}


def _check_same(before: Observations, after: Observations) -> None:
    if not np.array_equal(before.items, after.items):
        raise ValueError("the two models were not measured on the same items")
