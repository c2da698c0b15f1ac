"""What was found for the queries of a retrieval set, in the forms in which it is measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pipelines.evaluation.base import Form
from pipelines.evaluation.nearest import Neighbours, best_of
from pipelines.lexical.fusion import FUSED_RANKS, weighted_fusion

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
