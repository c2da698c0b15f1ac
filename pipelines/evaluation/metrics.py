"""The figures, as pure functions; all lie between 0 and 1, correlations between -1 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set

import numpy as np


def ndcg_at(ranked: Sequence[int], relevant: Set[int], k: int) -> float:
    """Normalised discounted cumulative gain of one query, with gains of 0 and 1.

    The gain at rank r (from 1) is divided by log2(r + 1), and the sum by that of an ideal
    ranking.

    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", ACM
    TOIS 20(4), 2002, with the discount of Burges et al., "Learning to rank using gradient
    descent", ICML 2005.

    Args:
        ranked: What was retrieved, the best first.
        relevant: What should have been; not empty.
        k: Ranks that count.
    """
    gained = sum(_discount(rank) for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    ideal = sum(_discount(rank) for rank in range(1, min(k, len(relevant)) + 1))
    return gained / ideal


def reciprocal_rank_at(ranked: Sequence[int], relevant: Set[int], k: int) -> float:
    """One over the rank of the first relevant item, or 0 where none is in the first k.

    Source: Voorhees, "The TREC-8 question answering track report", TREC 1999. Arguments as for
    :func:`ndcg_at`.
    """
    ranks = (rank for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    return next((1 / rank for rank in ranks), 0.0)


def recall_at(ranked: Sequence[int], relevant: Set[int], k: int) -> float:
    """Share of the relevant items that are among the first k; arguments as for :func:`ndcg_at`."""
    return sum(item in relevant for item in ranked[:k]) / len(relevant)


def pearson(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's correlation of two equally long vectors; 0 where one of them is constant.

    A model that finds all pairs equally similar says nothing about their order, hence 0.
    """
    from scipy.stats import pearsonr

    return 0.0 if _is_constant(left, right) else float(pearsonr(left, right).statistic)


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where a vector is constant."""
    from scipy.stats import spearmanr

    return 0.0 if _is_constant(left, right) else float(spearmanr(left, right).statistic)


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def _is_constant(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.ptp(left) == 0 or np.ptp(right) == 0)
