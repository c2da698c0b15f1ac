"""The figures, as pure functions; all lie between 0 and 1, correlations between -1 and 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

Relevant: TypeAlias = Set[int] | Mapping[int, float]
"""What should be found; of a mapping the values are the gains, all greater than 0."""


def ndcg_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Normalised discounted cumulative gain of one query, with gains of 1 unless others are given.

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
    gains = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
    gained = _discounted(gains.get(item, 0.0) for item in ranked[:k])
    return gained / _discounted(sorted(gains.values(), reverse=True)[:k])


def reciprocal_rank_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """One over the rank of the first relevant item, or 0 where none is in the first k.

    Source: Voorhees, "The TREC-8 question answering track report", TREC 1999. Arguments as for
    :func:`ndcg_at`.
    """
    ranks = (rank for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    return next((1 / rank for rank in ranks), 0.0)


def recall_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Share of the relevant items that are among the first k; arguments as for :func:`ndcg_at`."""
    return sum(item in relevant for item in ranked[:k]) / len(relevant)


def average_precision_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Mean, over all relevant items, of the precision at their ranks, or 0 beyond the first k.

    As in trec_eval (`map_cut`), and so in BEIR: sentence-transformers divides by k where more items
    are relevant. Source: Buckley and Voorhees, "Evaluating evaluation measure stability", SIGIR
    2000. Arguments as for :func:`ndcg_at`.
    """
    ranks = [rank for rank, item in enumerate(ranked[:k], 1) if item in relevant]
    return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(relevant)


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


def best_f1(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The highest F1 that a threshold on the scores gives, and that threshold.

    Of equal ones the highest threshold counts; it lies half way to the next score below.

    Args:
        scores: [pairs].
        labels: [pairs], 0 or 1, at least one of them 1.
    """
    found, extracted, distinct = _cumulated(scores, labels)
    f1 = 2 * found / (extracted + found[-1])
    return _best(f1, distinct)


def best_accuracy(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The highest accuracy that a threshold on the scores gives, and that threshold.

    As for :func:`best_f1`; if no threshold is better than calling all pairs unlike, it lies above
    the highest score.
    """
    found, extracted, distinct = _cumulated(scores, labels)
    negatives = len(labels) - found[-1]
    accuracy = (found + negatives - (extracted - found)) / len(labels)
    if negatives / len(labels) >= accuracy.max():
        return float(negatives / len(labels)), float(np.nextafter(distinct[0], np.inf))
    return _best(accuracy, distinct)


def _cumulated(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each distinct score, the highest first: positives and pairs down to it, and itself."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    last_of_score = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    found = np.cumsum(labels[order])[last_of_score]
    return found, last_of_score + 1, ordered[last_of_score]


def _best(values: np.ndarray, distinct: np.ndarray) -> tuple[float, float]:
    place = int(np.argmax(values))
    following = distinct[min(place + 1, len(distinct) - 1)]
    return float(values[place]), float((distinct[place] + following) / 2)


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _is_constant(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.ptp(left) == 0 or np.ptp(right) == 0)
