"""Vectors of the tokens of a corpus, by latent semantic analysis.

Source: Deerwester, Dumais, Furnas, Landauer and Harshman, "Indexing by latent semantic analysis",
Journal of the American Society for Information Science 41(6), 1990. Counts are weighed before as
there is usual: the logarithm of the count times the inverse document frequency, in documents of
length 1. Of a token's row of V S^(1/2) only the direction is kept. Its length is the inverse
document frequency to the power of 0.75, so that a text can be the plain mean of its tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from pipelines.models.inference.batches import TokenRows

POWER = 0.75
"""Of the inverse document frequency. From 0.5 to 1 it makes little difference; see the page on
measurements, which all that is chosen here comes from."""
_SEED, _ITERATIONS = 0, 7
"""Of the decomposition: Halko, Martinsson and Tropp, "Finding structure with randomness", SIAM
Review 53(2), 2011."""
_LEAST = 1e-9


def find_term_vectors(
    rows: TokenRows,
    vocabulary: int,
    dimensions: int,
    weight: float,
    left_out: Collection[int] = (),
) -> np.ndarray:
    """The vectors of the tokens of a corpus. Takes seconds for 50,000 texts, in this process.

    Args:
        rows: Token ids of its texts.
        vocabulary: Number of different ids.
        dimensions: Numbers of a vector. Where texts or tokens are fewer, the last ones are 0.
        weight: Squared length of the mean vector of one of the texts, on average.
        left_out: Ids that say nothing about a text, as those of special tokens.

    Returns:
        fp32 [vocabulary, dimensions]; zeros for what is left out and what no text has.
    """
    from scipy import sparse

    ends = np.concatenate([[0], np.cumsum(rows.lengths, dtype=np.int64)])
    ones = np.ones(len(rows.ids), np.float32)
    counts = sparse.csr_matrix(
        (ones, rows.ids.astype(np.int64), ends), shape=(len(rows.lengths), vocabulary)
    )
    counts.sum_duplicates()
    texts_with = np.bincount(counts.indices, minlength=vocabulary)
    texts_with[list(left_out)] = 0
    there = texts_with > 0
    rareness = np.zeros(vocabulary)
    rareness[there] = np.log1p(counts.shape[0] / texts_with[there])
    vectors = _directions(counts, rareness, dimensions) * rareness[:, None] ** POWER
    means = (counts @ vectors) / rows.lengths[:, None]
    squared = float(np.mean(np.sum(means**2, axis=1)))
    scaled: np.ndarray = vectors * np.sqrt(weight / max(squared, _LEAST))
    return scaled.astype(np.float32)


def _directions(counts: Any, rareness: np.ndarray, dimensions: int) -> np.ndarray:
    """Directions of tokens, of length 1, fp64 [vocabulary, dimensions].

    Args:
        counts: How often a text has a token, sparse [texts, vocabulary].
        rareness: Inverse document frequency of the tokens.
        dimensions: Of a direction.
    """
    from scipy import sparse
    from sklearn.utils.extmath import randomized_svd

    directions = np.zeros((counts.shape[1], dimensions))
    used = np.flatnonzero(rareness)
    weighed = counts[:, used].astype(np.float64)
    weighed.data = 1 + np.log(weighed.data)
    weighed = weighed @ sparse.diags_array(rareness[used])
    lengths = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel())
    weighed = sparse.diags_array(1 / np.maximum(lengths, _LEAST)) @ weighed
    rank = min(dimensions, *weighed.shape)
    if not rank:
        return directions
    # SciPy's own decomposition of sparse matrices gives other signs every time.
    _, values, right = randomized_svd(weighed, rank, n_iter=_ITERATIONS, random_state=_SEED)
    found = right.T * np.sqrt(values)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    directions[used, :rank] = found / np.maximum(norms, _LEAST)
    return directions
