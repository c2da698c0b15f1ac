"""Rankings of documents: their metrics, and the forms in which a retrieval set is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipelines.evaluation.base import Form
from pipelines.vectors.bm25 import FUSED_RANKS, weighted_fusion
from pipelines.vectors.nearest import Neighbours, best_of

Relevant: TypeAlias = Set[int] | Mapping[int, float]
"""What should be found; of a mapping the values are the gains, all greater than 0."""
Ranking: TypeAlias = Mapping[int, Sequence[int]]
"""Ids of documents by query id, the best first; queries that find nothing may be left out."""


def ndcg_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the normalised discounted cumulative gain of one query.

    The gain at rank r (from 1; gains are 1 unless given) is divided by log2(r + 1), and the sum by
    that of an ideal ranking.

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


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def reciprocal_rank_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return one over the rank of the first relevant item; 0 where none is in the first k.

    Source: Voorhees, "The TREC-8 question answering track report", TREC 1999.
    """
    ranks = (rank for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    return next((1 / rank for rank in ranks), 0.0)


def recall_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the share of the relevant items that are among the first k."""
    return sum(item in relevant for item in ranked[:k]) / len(relevant)


def average_precision_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the mean, over all relevant items, of the precision at their ranks; 0 beyond k.

    As in trec_eval (`map_cut`), and so in BEIR: sentence-transformers divides by k where more items
    are relevant. Source: Buckley and Voorhees, "Evaluating evaluation measure stability", SIGIR
    2000.
    """
    ranks = [rank for rank, item in enumerate(ranked[:k], 1) if item in relevant]
    return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(relevant)


METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10")
"""Those that are always measured; a set is judged by the first."""
_MEASURES: Mapping[str, Callable[[Sequence[int], Relevant, int], float]] = {
    "ndcg": ndcg_at,
    "mrr": reciprocal_rank_at,
    "recall": recall_at,
    "map": average_precision_at,
}


def retrieval_metrics(
    ranked: Ranking, relevant: Mapping[int, Relevant], metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Return the means of metrics over all queries, times 100.

    Args:
        ranked: Documents by query.
        relevant: By query id; what is not in ``ranked`` counts as 0.
        metrics: Their names, each with its cut-off.
    """
    by_query = figures_by_query(ranked, relevant, metrics)
    return {name: 100 * float(np.mean(figures)) for name, figures in by_query.items()}


def figures_by_query(
    ranked: Ranking, relevant: Mapping[int, Relevant], metrics: Sequence[str] = METRICS
) -> dict[str, np.ndarray]:
    """Return each metric for each query: [queries], from 0 to 1, by ascending id."""
    keys = sorted(relevant)
    figures = {}
    for name in metrics:
        metric, _, cutoff = name.partition("@")
        measured, k = _MEASURES[metric], int(cutoff)
        figures[name] = np.array([measured(ranked.get(key, ()), relevant[key], k) for key in keys])
    return figures


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
        """Return the first documents of each query, that of the query's own id left out."""
        words = None if self.by_words is None else _others(self.by_words, depth)
        return Rankings({width: _others(one, depth) for width, one in self.by_width.items()}, words)

    def in_forms(self, depth: int) -> dict[Form, Ranking]:
        """Return the first documents by each width, and by it and BM25 together if there."""
        forms: dict[Form, Ranking] = {}
        for width, found in self.by_width.items():
            forms[Form(width)] = ranking_of(best_of(found, depth))
            if self.by_words is not None:
                forms[Form(width, hybrid=True)] = _fused(found, self.by_words, depth)
        return forms


def _others(found: Neighbours, depth: int) -> Neighbours:
    is_other = found.queries != found.documents
    kept = (found.queries[is_other], found.documents[is_other], found.scores[is_other])
    return best_of(Neighbours(*kept), depth)


def _fused(by_vectors: Neighbours, by_words: Neighbours, depth: int) -> Ranking:
    """Return the first documents of both rankings, as `search --hybrid` has them.

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


def ranking_of(found: Neighbours) -> Ranking:
    """Return the documents by query, the best first."""
    ranked: dict[int, list[int]] = {}
    for query, document in zip(found.queries.tolist(), found.documents.tolist(), strict=True):
        ranked.setdefault(query, []).append(document)
    return ranked
