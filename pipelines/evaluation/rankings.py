"""What was found for the queries of a retrieval set, in the forms in which it is measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipelines.evaluation.base import Form
from pipelines.vectors.bm25 import FUSED_RANKS, weighted_fusion
from pipelines.vectors.nearest import Neighbours, best_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


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


def best_rows(found: DataFrame, groups: Sequence[str], depth: int) -> list[Row]:
    """The rows of highest ``score`` of each group, group by group, the best first.

    Args:
        found: ``document_id``, ``score`` and the columns of the groups; each partition may have
            more than are wanted.
        groups: Columns; rows of equal values are a group.
        depth: Rows of a group; of equal ones the lower id wins.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    best_first = Window.partitionBy(*groups).orderBy(F.desc("score"), F.asc("document_id"))
    ranked = found.withColumn("rank", F.row_number().over(best_first))
    rows = ranked.where(F.col("rank") <= depth).collect()
    return sorted(rows, key=lambda row: (*(row[name] for name in groups), row["rank"]))


Ranking: TypeAlias = Mapping[int, Sequence[int]]
"""Ids of documents by query id, the best first; queries that find nothing may be left out."""


@dataclass(frozen=True)
class Rankings:
    """The documents of the same queries, ranked in several ways; queries are known by their ids.

    Attributes:
        by_width: By embeddings that are cut to a width.
        by_words: By BM25, where that is measured too.
    """

    by_width: Mapping[int, Neighbours]
    by_words: Neighbours | None = None

    def without_themselves(self, depth: int) -> Rankings:
        """The first documents of each query, that of the query's own id left out."""
        words = None if self.by_words is None else _others(self.by_words, depth)
        return Rankings({width: _others(one, depth) for width, one in self.by_width.items()}, words)

    def in_forms(self, depth: int) -> dict[Form, Ranking]:
        """The first documents by each width, and by it and BM25 together where that is there."""
        forms: dict[Form, Ranking] = {}
        for width, found in self.by_width.items():
            forms[Form(width)] = ranking_of(best_of(found, depth))
            if self.by_words is not None:
                forms[Form(width, hybrid=True)] = _fused(found, self.by_words, depth)
        return forms


def _fused(by_vectors: Neighbours, by_words: Neighbours, depth: int) -> Ranking:
    """The first documents of both rankings, as `search --hybrid` has them.

    Metrics that count more ranks change nothing of the first: what both have further down follows.
    """
    vectors, words = (best_of(one, FUSED_RANKS) for one in (by_vectors, by_words))
    first = ranking_of(weighted_fusion(vectors, words, depth))
    if depth <= FUSED_RANKS:
        return first
    deeper = ranking_of(weighted_fusion(by_vectors, by_words, depth))
    return {
        query: list(dict.fromkeys([*first[query], *documents]))[:depth]
        for query, documents in deeper.items()
    }


def _others(found: Neighbours, depth: int) -> Neighbours:
    is_other = found.queries != found.documents
    kept = (found.queries[is_other], found.documents[is_other], found.scores[is_other])
    return best_of(Neighbours(*kept), depth)


def ranking_of(found: Neighbours) -> Ranking:
    """Documents by query, the best first."""
    ranked: dict[int, list[int]] = {}
    for query, document in zip(found.queries.tolist(), found.documents.tolist(), strict=True):
        ranked.setdefault(query, []).append(document)
    return ranked


def neighbours_of(rows: Sequence[tuple[int, int, float]], depth: int) -> Neighbours:
    """Rows of query id, document id and score, in any order; at most so many of a query."""
    queries, documents, scores = zip(*rows, strict=True) if rows else ((), (), ())
    found = Neighbours(
        np.array(queries, np.int64), np.array(documents, np.int64), np.array(scores, np.float64)
    )
    return best_of(found, depth)


def neighbours_by_width(
    rows: Iterable[Mapping[str, Any]], ids: np.ndarray, widths: Sequence[int], depth: int
) -> dict[int, Neighbours]:
    """The same by width, of rows of ``width``, ``query``, ``document_id`` and ``score``.

    Args:
        rows: In any order.
        ids: Of the queries, by the number that ``query`` is.
        widths: All that are asked for.
        depth: Documents of a query.
    """
    found: dict[int, list[tuple[int, int, float]]] = {width: [] for width in widths}
    for row in rows:
        key = int(ids[row["query"]])
        found[row["width"]].append((key, row["document_id"], row["score"]))
    return {width: neighbours_of(some, depth) for width, some in found.items()}
