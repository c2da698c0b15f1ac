"""Two rankings of the same documents as one: by vectors, and by words.

A document's score is its cosine and a tenth of its BM25, as a share of the query's best one.
Source: Bruch, Gai and Ingber, "An analysis of fusion functions for hybrid retrieval", ACM
Transactions on Information Systems 42(1), 2023, who find such sums better than fusion by ranks,
which gives words half of the say however little they find.
"""

from __future__ import annotations

import numpy as np

from pipelines.evaluation.nearest import Neighbours, best_of, joined

WORD_WEIGHT = 0.1
"""What the best BM25 of a query adds to a cosine. Measured on six collections: of 0.05, 0.1, 0.15
and more the largest with which none finds less; see `docs/measurements.md`."""
FUSED_RANKS = 100
"""Of each ranking that count at least; a document below them in one gains nothing from it."""


def weighted_fusion(by_vectors: Neighbours, by_words: Neighbours, k: int) -> Neighbours:
    """The k best of both rankings for each query, by cosine + 0.1 BM25 / best BM25.

    A document that only words have found counts with the lowest cosine that is known of its query,
    which its own does not exceed; one that only vectors have found, with a BM25 of zero. Of equal
    sums the lower id wins.

    Args:
        by_vectors: The best by cosine.
        by_words: The best by BM25, all above zero; of a query that shares no word with any
            document there are none.
        k: Documents of a query; fewer where both rankings together have fewer.
    """
    if not len(by_words.queries):
        return best_of(by_vectors, k)
    queries, number = np.unique(
        np.concatenate([by_vectors.queries, by_words.queries]), return_inverse=True
    )
    of_vectors, of_words = np.split(number, [len(by_vectors.queries)])
    lowest, highest = np.full(len(queries), np.inf), np.zeros(len(queries))
    np.minimum.at(lowest, of_vectors, by_vectors.scores)
    np.maximum.at(highest, of_words, by_words.scores)
    lowest[np.isinf(lowest)] = 0.0

    found = joined([by_vectors, by_words])
    above = by_vectors.scores - lowest[of_vectors]
    parts = [above, WORD_WEIGHT * by_words.scores / highest[of_words]]
    pairs = np.stack([found.queries, found.documents], axis=1)
    different, places = np.unique(pairs, axis=0, return_inverse=True)
    sums = np.bincount(places.reshape(-1), np.concatenate(parts), len(different))
    sums += lowest[np.searchsorted(queries, different[:, 0])]
    return best_of(Neighbours(different[:, 0], different[:, 1], sums), k)


def ranks_of(ranking: Neighbours) -> np.ndarray:
    """int64 [neighbours]: the rank of each, from 1 for the best of its query."""
    ranks: np.ndarray = (
        np.arange(len(ranking.queries)) - np.searchsorted(ranking.queries, ranking.queries) + 1
    )
    return ranks
