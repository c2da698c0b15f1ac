"""What leaves a document out of the negatives of a pair. Used on executors.

Adding a filter takes a :class:`Filter` and a line in :data:`pipelines.catalog.FILTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.nearest import Neighbours
from pipelines.mining.anchors import Anchors
from pipelines.settings import MiningSettings


@dataclass(frozen=True)
class Filter:
    """A reason why a document is no negative.

    Attributes:
        drops: Which of the documents found for pairs are left out: bool, as many.
        is_on: Whether the settings ask for it.
        by_score: Whether it compares scores. Otherwise the document is the anchor's own in some
            way, and is not drawn at random either.
    """

    drops: Callable[[Anchors, Neighbours, MiningSettings], np.ndarray]
    is_on: Callable[[MiningSettings], bool]
    by_score: bool = False


def _is_positive(anchors: Anchors, found: Neighbours, _: MiningSettings) -> np.ndarray:
    return anchors.are_positives(found.queries, found.documents)


def _is_anchor(anchors: Anchors, found: Neighbours, _: MiningSettings) -> np.ndarray:
    same: np.ndarray = anchors.own[found.queries] == found.documents
    return same


def _is_of_group(anchors: Anchors, found: Neighbours, _: MiningSettings) -> np.ndarray:
    return anchors.are_of_group(found.queries, found.documents)


def _is_above(_: Anchors, found: Neighbours, settings: MiningSettings) -> np.ndarray:
    assert settings.max_score is not None, "the filter is on"
    above: np.ndarray = found.scores > settings.max_score
    return above


def _is_too_near(anchors: Anchors, found: Neighbours, settings: MiningSettings) -> np.ndarray:
    scores = anchors.positive_scores
    if settings.margin_positive == "lowest":
        scores = anchors.lowest_positive_scores()
    limits = score_limits(scores, settings)
    too_near: np.ndarray = found.scores > limits[found.queries]
    return too_near


def score_limits(positive_scores: np.ndarray, settings: MiningSettings) -> np.ndarray:
    """The highest score of a negative of each pair, by the score of its positive.

    Documents that are about as near as the positive are often unlabelled positives. Source:
    Moreira et al., "NV-Retriever: Improving text embedding models with effective hard-negative
    mining", 2024, arXiv:2407.15831 (`TopK-PercPos` and `TopK-MarginPos`). A share of a positive
    score below 0 is taken away from it, too, so that a limit is never above the score.

    Args:
        positive_scores: [pairs], of whichever positive `mining.margin_positive` says.
        settings: Of the job.
    """
    limits = np.full(len(positive_scores), np.inf)
    if settings.relative_margin is not None:
        limits = positive_scores - settings.relative_margin * np.abs(positive_scores)
    if settings.absolute_margin is not None:
        limits = np.minimum(limits, positive_scores - settings.absolute_margin)
    return limits


POSITIVE = Filter(_is_positive, lambda _: True)
TEXT = Filter(_is_anchor, lambda _: True)
GROUP = Filter(_is_of_group, lambda settings: not settings.same_group)
SCORE = Filter(_is_above, lambda settings: settings.max_score is not None, by_score=True)
MARGIN = Filter(
    _is_too_near,
    lambda settings: (settings.relative_margin, settings.absolute_margin) != (None, None),
    by_score=True,
)
