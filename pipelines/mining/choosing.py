"""Which of the documents that were found become negatives. Used on executors.

What is random follows from the seed, the texts of the pair and the document alone, by a hash of
them: never from the number of tasks, nor from the order of the pairs. Source of the hash: the
finaliser of SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipelines.catalog import FILTERS
from pipelines.evaluation.nearest import Neighbours
from pipelines.mining.anchors import Anchors
from pipelines.settings import MiningSettings

NONE = -1
"""In place of a document where there is none."""
DRAWS = 64
"""Random documents that are looked at for each one that is wanted, at most."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Negatives:
    """The negatives of pairs, the nearest first, those that were drawn at random behind them.

    Attributes:
        documents: int64 [pairs, negatives], positions; :data:`NONE` where there are fewer.
        scores: [pairs, negatives]; NaN where they are not known yet.
    """

    documents: np.ndarray
    scores: np.ndarray

    @property
    def is_whole(self) -> np.ndarray:
        """Whether a pair has all of its negatives, bool [pairs]."""
        whole: np.ndarray = (self.documents != NONE).all(axis=1)
        return whole


def wanted(settings: MiningSettings) -> int:
    """The nearest documents of each pair that have to be known."""
    window = settings.negatives if settings.choose == "nearest" else settings.window
    return settings.skip + window


def choose(found: Neighbours, anchors: Anchors, settings: MiningSettings) -> Negatives:
    """Takes the negatives of each pair from what was found for it.

    Args:
        found: The nearest documents that pass the filters, the best first.
        anchors: The pairs.
        settings: Say which are taken.
    """
    ranks = _ranks(found.queries) - settings.skip
    keep = (ranks >= 0) & (ranks < wanted(settings) - settings.skip)
    rows, documents, scores = (
        values[keep] for values in (found.queries, found.documents, found.scores)
    )
    if settings.choose == "random":
        draws = _mixed(anchors.ids[rows], documents, settings.seed)
        by_draw = np.lexsort((documents, draws, rows))
        chosen = np.sort(by_draw[_ranks(rows[by_draw]) < settings.negatives])
        rows, documents, scores = rows[chosen], documents[chosen], scores[chosen]
    size = (len(anchors), settings.negatives)
    negatives = Negatives(np.full(size, NONE, np.int64), np.full(size, np.nan))
    places = _ranks(rows)
    negatives.documents[rows, places] = documents
    negatives.scores[rows, places] = scores
    return negatives


def fill(negatives: Negatives, anchors: Anchors, settings: MiningSettings) -> Negatives:
    """Draws what is missing from all documents but those that are the anchor's own.

    Scores decide nothing here. A pair may stay short where there are few documents.

    Returns:
        With scores of NaN where a document was drawn.
    """
    documents = negatives.documents.copy()
    rows = np.flatnonzero(~negatives.is_whole)
    filters = [FILTERS.load(reason) for reason in FILTERS]
    own = [one for one in filters if not one.by_score and one.is_on(settings)]
    for draw in range(DRAWS * settings.negatives):
        if not len(rows):
            break
        mixed = _mixed(anchors.ids[rows], np.full(len(rows), draw), settings.seed + 1)
        drawn = (mixed % np.uint64(anchors.documents)).astype(np.int64)
        found = Neighbours(rows, drawn, np.full(len(rows), np.nan))
        fits = ~(documents[rows] == drawn[:, None]).any(axis=1)
        for one in own:
            fits &= ~one.drops(anchors, found, settings)
        place = (documents[rows[fits]] == NONE).argmax(axis=1)
        documents[rows[fits], place] = drawn[fits]
        rows = rows[(documents[rows] == NONE).any(axis=1)]
    return Negatives(documents, negatives.scores)


def _ranks(rows: np.ndarray) -> np.ndarray:
    """The place of each among those of the same row; rows ascend."""
    ranks: np.ndarray = np.arange(len(rows)) - np.searchsorted(rows, rows)
    return ranks


def _mixed(ids: np.ndarray, others: np.ndarray, seed: int) -> np.ndarray:
    """64 random bits of each pair of numbers."""
    mixed = np.full(len(ids), seed, np.uint64)
    for values in _as_bits(ids, others):
        mixed = _finalised(mixed * _STEP + values)
    return mixed


def _as_bits(*arrays: np.ndarray) -> Iterator[np.ndarray]:
    return (array.astype(np.int64).view(np.uint64) for array in arrays)


def _finalised(values: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64; arithmetic wraps around."""
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
