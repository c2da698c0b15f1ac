"""Exact nearest neighbours by cosine, independent of the order of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

SCORE_DECIMALS = 6
"""Decimals in comparisons of cosines: the last bits of a float32 product depend on the size of the
blocks, and must not decide the order of two equal texts."""

BLOCK_CELLS = 4 * 2**20
"""Scores in memory at a time: 32 MiB."""


_RANKS_AHEAD = 60
"""Added to ranks before they are inverted: the constant of the source."""
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Neighbours:
    """The nearest documents of each query, the best first.

    ``queries`` (int64, ascending) are rows of queries, ``documents`` (int64) ids. ``scores`` are
    float64, cosines or other scores; rounded to :data:`SCORE_DECIMALS` where computed from
    embeddings.
    """

    queries: np.ndarray
    documents: np.ndarray
    scores: np.ndarray

    @classmethod
    def none(cls) -> Neighbours:
        """Return no neighbours of any query."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))

    def where(self, chosen: np.ndarray) -> Neighbours:
        """Return the neighbours selected by a mask or by indices."""
        return Neighbours(self.queries[chosen], self.documents[chosen], self.scores[chosen])


def nearest(queries: np.ndarray, documents: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
    """Find the k documents of highest cosine for each query; ties go to the lower id.

    ``queries`` and ``documents`` are [rows, width], of length 1; ``ids`` are int64 [documents].
    If there are fewer documents than k, return all. Scores in memory stay below about 32 MB.
    """
    rows = max(1, BLOCK_CELLS // max(len(documents), 1))
    found = [Neighbours.none()]
    for start in range(0, len(queries), rows):
        scores = np.round(
            (queries[start : start + rows] @ documents.T).astype(float), SCORE_DECIMALS
        )
        # NaN has no rank; a model with such vectors finds nothing.
        scores[np.isnan(scores)] = -np.inf
        found.append(best_of_block(scores, start, ids, k))
    return joined(found)


def merged(left: Neighbours, right: Neighbours, k: int) -> Neighbours:
    """Return the k best of both for each query."""
    return best_of(joined([left, right]), k)


def best_of_block(scores: np.ndarray, start: int, ids: np.ndarray, k: int) -> Neighbours:
    """Return the k best of a block of scores; ties go to the lower id.

    ``scores`` are [queries, documents], minus infinity for documents not found; ``start`` is the
    number of the first query; ``ids`` are int64 [documents].
    """
    count = scores.shape[1]
    if count > k:
        # All ties with the k-th score are kept here; the ids decide among them later.
        limit = np.partition(scores, count - k, axis=1)[:, count - k, None]
        rows, columns = np.nonzero(scores >= limit)
    else:
        rows, columns = (index.ravel() for index in np.indices(scores.shape))
    is_found = np.isfinite(scores[rows, columns])
    rows, columns = rows[is_found], columns[is_found]
    return best_of(Neighbours(rows + start, ids[columns], scores[rows, columns]), k)


def best_of(found: Neighbours, k: int) -> Neighbours:
    """Return the k best of each query, in order; ties go to the lower id."""
    order = np.lexsort((found.documents, -found.scores, found.queries))
    return found.where(order[ranks(found.queries[order]) < k])


def rank_fusion(first: Sequence[_Item], second: Sequence[_Item], share: float) -> list[_Item]:
    """Return the items of two rankings of a query by weighted sums of their reciprocal ranks.

    ``share`` is the weight of the second one, from 0 to 1. Ties keep the order of the first.
    Source: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and
    individual Rank Learning Methods", SIGIR 2009; there both weights are equal.
    """
    sums: dict[_Item, float] = {}
    for ranking, weight in ((first, 1 - share), (second, share)):
        for rank, item in enumerate(ranking, start=1):
            sums[item] = sums.get(item, 0.0) + weight / (_RANKS_AHEAD + rank)
    return sorted(sums, key=sums.__getitem__, reverse=True)


def ranks(queries: np.ndarray) -> np.ndarray:
    """Return the place of each among those of the same query, from 0; queries ascend."""
    places: np.ndarray = np.arange(len(queries)) - np.searchsorted(queries, queries)
    return places


def joined(parts: Sequence[Neighbours]) -> Neighbours:
    """Concatenate neighbours, in no order."""
    return Neighbours(
        np.concatenate([part.queries for part in parts]),
        np.concatenate([part.documents for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def unit_length(embeddings: np.ndarray) -> np.ndarray:
    """Scale rows [texts, width] to length 1, in float32; a zero row stays zero."""
    lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1, keepdims=True)
    scaled: np.ndarray = (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)
    return scaled
