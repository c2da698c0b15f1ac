"""Rows that are found by vectors, by words, or by both: two rankings as one.

Vectors find what is meant, words find names, numbers and rare terms that a model has never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipelines.embedding.store import VectorTable, rows_at
from pipelines.embedding.vectors import vectors_of
from pipelines.evaluation.embedder import unit_length
from pipelines.evaluation.nearest import SCORE_DECIMALS, Neighbours
from pipelines.lexical.fusion import FUSED_RANKS, ranks_of, weighted_fusion
from pipelines.search.by_words import search_words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Fused:
    """The best rows of each query by two rankings; all arrays have a value for each of them.

    Attributes:
        found: Queries and positions, the best first; scores are those of
            :func:`~pipelines.lexical.fusion.weighted_fusion`.
        cosines: float64.
        by_vectors: int64, the rank by cosine; 0 where it is below those that count.
        by_words: The same by BM25.
    """

    found: Neighbours
    cosines: np.ndarray
    by_vectors: np.ndarray
    by_words: np.ndarray


def candidates(k: int) -> int:
    """Rows of either ranking that the k best of both are chosen from."""
    return max(k, FUSED_RANKS)


def fuse_with_words(
    table: VectorTable,
    queries: Sequence[str],
    vectors: np.ndarray,
    nearest: Neighbours,
    k: int,
    session: SparkSession | None = None,
) -> Fused:
    """The k best rows of each query by vectors and by BM25.

    Args:
        table: What is searched.
        queries: Texts.
        vectors: Of the queries, [queries, dimensions].
        nearest: The :func:`candidates` of each query by vectors.
        k: Rows of a query.
        session: Has its executors read the texts; without one, this process does.

    Raises:
        InputError: The table has no texts.
        PipelineError: An executor could not search its files.
    """
    worded = search_words(table, queries, candidates(k), session)
    found = weighted_fusion(nearest, worded, k)
    return Fused(
        found=found,
        cosines=_cosines(table, vectors, found, nearest),
        by_vectors=_looked_up(found, nearest, ranks_of(nearest)),
        by_words=_looked_up(found, worded, ranks_of(worded)),
    )


def _looked_up(found: Neighbours, ranking: Neighbours, values: np.ndarray) -> np.ndarray:
    """The value that a ranking has for each row that was found; 0 where it has none."""
    keys = zip(ranking.queries.tolist(), ranking.documents.tolist(), strict=True)
    known = dict(zip(keys, values.tolist(), strict=True))
    wanted = zip(found.queries.tolist(), found.documents.tolist(), strict=True)
    return np.array([known.get(key, 0) for key in wanted], values.dtype)


def _cosines(
    table: VectorTable, vectors: np.ndarray, found: Neighbours, nearest: Neighbours
) -> np.ndarray:
    """Of the rows that were found; those that only words have found are read."""
    cosines = _looked_up(found, nearest, nearest.scores)
    missing = _looked_up(found, nearest, ranks_of(nearest)) == 0
    if missing.any():
        names = [table.vector, *([table.scale] if table.scale else [])]
        rows = rows_at(table, found.documents[missing], names).combine_chunks()
        scales = rows.column(table.scale).combine_chunks() if table.scale else None
        there = unit_length(vectors_of(rows.column(table.vector), scales))
        asked = unit_length(vectors)[found.queries[missing]]
        products = np.einsum("ij,ij->i", there, asked).astype(float)
        cosines[missing] = np.round(products, SCORE_DECIMALS)
    return cosines
