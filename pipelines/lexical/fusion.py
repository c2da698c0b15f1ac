"""Several rankings of the same documents as one, by ranks alone.

Scores of different kinds, such as cosines and BM25, cannot be added: they have neither unit nor
range in common. Source: Cormack, Clarke and Buettcher, "Reciprocal rank fusion outperforms
Condorcet and individual rank learning methods", SIGIR 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.evaluation.nearest import Neighbours, best_of, joined

RANK_CONSTANT = 60
"""Added to every rank, so that the first places do not decide alone: the source's `k`."""
FUSED_RANKS = 100
"""Of each ranking that count at least; a document below them in one gains nothing from it."""


def reciprocal_rank_fusion(rankings: Sequence[Neighbours], k: int) -> Neighbours:
    """The k best of several rankings for each query, by the sum of 1 / (60 + rank).

    Of equal sums the lower id wins.

    Args:
        rankings: Each of the same queries; a document that one does not have gains nothing there.
        k: Documents of a query; fewer where all rankings together have fewer.
    """
    found = joined(rankings)
    parts = [1.0 / (RANK_CONSTANT + ranks_of(ranking)) for ranking in rankings]
    pairs = np.stack([found.queries, found.documents], axis=1)
    different, places = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.bincount(places.reshape(-1), np.concatenate(parts), len(different))
    return best_of(Neighbours(different[:, 0], different[:, 1], sums), k)


def ranks_of(ranking: Neighbours) -> np.ndarray:
    """int64 [neighbours]: the rank of each, from 1 for the best of its query."""
    ranks: np.ndarray = (
        np.arange(len(ranking.queries)) - np.searchsorted(ranking.queries, ranking.queries) + 1
    )
    return ranks
