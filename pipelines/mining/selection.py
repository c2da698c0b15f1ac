"""Keeps the nearest documents of each pair that pass the filters. Used on executors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pipelines.catalog import FILTERS
from pipelines.evaluation.nearest import SCORE_DECIMALS, Neighbours, joined, merged
from pipelines.mining.anchors import Anchors
from pipelines.settings import MiningSettings

WAITING = 2**20
"""Documents that were found and wait to be sorted, at most; 24 bytes each."""
_WAITING_OF_ONE = 2
"""The same, where it is less, for each that may be kept: the sooner they are sorted, the sooner
others are known to be too far."""
_ROUNDING = 2 * 10.0**-SCORE_DECIMALS


class Nearest:
    """The nearest documents of some pairs, of all that were added.

    What is added waits until there is enough of it to be sorted together.

    Args:
        pairs: How many there are.
        k: Documents that are kept of each.
        floor: The least score.
    """

    def __init__(self, pairs: int, k: int, floor: float = -np.inf) -> None:
        self._k, self._floor = k, floor
        self._found = Neighbours.none()
        self._waiting: list[Neighbours] = []
        self._count = 0
        self.bounds = np.full(pairs, floor)
        """Score from which a document may be among the nearest of a pair, as far as is known."""

    def add(self, found: Neighbours) -> None:
        """Adds documents; those that cannot be among the nearest are passed over."""
        near = some_of(found, found.scores >= self.bounds[found.queries])
        self._waiting.append(near)
        self._count += len(near.queries)
        if self._count >= min(WAITING, _WAITING_OF_ONE * self._k * len(self.bounds)):
            self.result()

    def result(self) -> Neighbours:
        """The nearest of each pair, the best first; of equal ones the first document."""
        if self._waiting:
            self._found = merged(self._found, joined(self._waiting), self._k)
            self._waiting, self._count = [], 0
            counts = np.bincount(self._found.queries, minlength=len(self.bounds))
            last = np.cumsum(counts) - 1
            is_full = counts == self._k
            self.bounds[is_full] = self._found.scores[last[is_full]]
        return self._found


class Selection:
    """What a search finds for the pairs of a part, and what filters drop of it.

    Args:
        anchors: The pairs.
        settings: Which filters are on.
        k: Documents that are wanted of each pair.

    Attributes:
        anchors: The pairs.
        k: Documents that are wanted of each pair.
        floor: The least score that may be wanted.
    """

    def __init__(self, anchors: Anchors, settings: MiningSettings, k: int) -> None:
        self.anchors, self.k = anchors, k
        self._settings = settings
        self.floor = -np.inf if settings.min_score is None else settings.min_score
        loaded = {reason: FILTERS.load(reason) for reason in FILTERS}
        self._filters = {name: one for name, one in loaded.items() if one.is_on(settings)}
        self._nearest = Nearest(len(anchors), k, self.floor)
        self._dropped = {reason: Nearest(len(anchors), k, self.floor) for reason in self._filters}

    def offer(self, first: int, documents: np.ndarray, scores: np.ndarray) -> None:
        """Adds a block of scores.

        Args:
            first: Of the pairs that are the rows of the block.
            documents: int64 [columns].
            scores: fp32 [rows, columns].
        """
        bounds = self._nearest.bounds[first : first + len(scores)] - _ROUNDING
        # A score that is no number is not above any bound.
        rows, columns = np.nonzero(scores >= bounds[:, None].astype(np.float32))
        if len(rows):
            self.add(Neighbours(rows + first, documents[columns], scores[rows, columns]))

    def add(self, found: Neighbours) -> None:
        """Adds documents that were found, in any order."""
        scores = np.round(found.scores.astype(float), SCORE_DECIMALS)
        found = Neighbours(found.queries, found.documents, scores)
        for reason, one in self._filters.items():
            drops = one.drops(self.anchors, found, self._settings)
            if drops.any():
                self._dropped[reason].add(some_of(found, drops))
                found = some_of(found, ~drops)
        self._nearest.add(found)

    def result(self) -> Neighbours:
        """The nearest documents of each pair that pass all filters, the best first."""
        return self._nearest.result()

    def are_short(self) -> np.ndarray:
        """Whether fewer documents than are wanted have been found for a pair, bool [pairs]."""
        counts = np.bincount(self.result().queries, minlength=len(self.anchors))
        short: np.ndarray = counts < self.k
        return short

    def dropped(self) -> Mapping[str, int]:
        """By reason, documents that were nearer than the last one that is kept of their pair.

        Of each pair and reason, at most as many as are kept of a pair are counted.
        """
        self.result()
        bounds = self._nearest.bounds
        found = {reason: one.result() for reason, one in self._dropped.items()}
        return {
            reason: int((one.scores >= bounds[one.queries]).sum()) for reason, one in found.items()
        }


def some_of(found: Neighbours, which: np.ndarray) -> Neighbours:
    """Those of the neighbours that are marked."""
    return Neighbours(found.queries[which], found.documents[which], found.scores[which])
