"""How large a difference between two models has to be to be more than chance."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipelines.evaluation.retrieval import Retrieved, figures_by_query

CONFIDENCE = 0.95
FEWEST_QUERIES = 10
"""With fewer, the spread of the differences is not known well enough."""


def margin(before: np.ndarray, after: np.ndarray) -> float | None:
    """Half the width of the interval of the mean difference of paired figures.

    The mean of `after - before` lies within it of the true one with a probability of
    :data:`CONFIDENCE`: the quantile of Student's t times the standard error of the differences.

    Source: Student, "The probable error of a mean", Biometrika 6(1), 1908. For retrieval it agrees
    with bootstrap and randomisation: Smucker, Allan and Carterette, "A comparison of statistical
    significance tests for information retrieval evaluation", CIKM 2007.

    Args:
        before: A figure for each query.
        after: The same figure of the same queries, in the same order.

    Returns:
        None of fewer than :data:`FEWEST_QUERIES`, or where a figure is no number.
    """
    from scipy.stats import t

    difference = np.asarray(after, float) - np.asarray(before, float)
    if len(difference) < FEWEST_QUERIES or not np.isfinite(difference).all():
        return None
    quantile = t.ppf((1 + CONFIDENCE) / 2, len(difference) - 1)
    return float(quantile * np.std(difference, ddof=1) / math.sqrt(len(difference)))


def retrieval_margins(
    before: Mapping[str, Retrieved], after: Mapping[str, Retrieved]
) -> dict[str, dict[str, float]]:
    """The margins of the differences of all retrieval figures, times 100.

    Args:
        before: What a model has found, by evaluation.
        after: What the other has found for the same queries.

    Returns:
        By evaluation and metric, where a margin can be known.
    """
    margins: dict[str, dict[str, float]] = {}
    for name in before.keys() & after.keys():
        old, new = (
            figures_by_query(found[name].ranked, found[name].queries.relevant)
            for found in (before, after)
        )
        known = {metric: margin(100 * old[metric], 100 * new[metric]) for metric in old}
        margins[name] = {metric: one for metric, one in known.items() if one is not None}
    return margins
