"""What was found for the queries of a retrieval set, in the forms in which it is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipelines.evaluation.base import Form
from pipelines.evaluation.nearest import Neighbours
from pipelines.lexical.fusion import reciprocal_rank_fusion

Ranking: TypeAlias = Mapping[int, Sequence[int]]
"""Ids of documents by query id, the best first; queries that find nothing may be left out."""


@dataclass(frozen=True)
class Rankings:
    """The documents of the same queries, ranked in several ways.

    Attributes:
        by_width: By embeddings that are cut to a width.
        by_words: By BM25, where that is measured too.
    """

    by_width: Mapping[int, Ranking]
    by_words: Ranking | None = None

    def without_themselves(self, depth: int) -> Rankings:
        """The first documents of each query, that of the query's own id left out."""
        words = None if self.by_words is None else _others(self.by_words, depth)
        return Rankings({width: _others(one, depth) for width, one in self.by_width.items()}, words)

    def in_forms(self, depth: int) -> dict[Form, Ranking]:
        """The first documents by each width, and by it and BM25 together where that is there."""
        forms: dict[Form, Ranking] = {}
        for width, ranked in self.by_width.items():
            forms[Form(width)] = {key: found[:depth] for key, found in ranked.items()}
            if self.by_words is not None:
                forms[Form(width, hybrid=True)] = fused([ranked, self.by_words], depth)
        return forms


def _others(ranked: Ranking, depth: int) -> Ranking:
    return {key: [item for item in found if item != key][:depth] for key, found in ranked.items()}


def fused(rankings: Sequence[Ranking], depth: int) -> Ranking:
    """Rankings of the same queries as one; see :mod:`pipelines.lexical.fusion`."""
    return ranking_of(reciprocal_rank_fusion([*map(_neighbours, rankings)], depth))


def ranking_of(found: Neighbours) -> Ranking:
    """Documents by query, the best first."""
    ranked: dict[int, list[int]] = {}
    for query, document in zip(found.queries.tolist(), found.documents.tolist(), strict=True):
        ranked.setdefault(query, []).append(document)
    return ranked


def _neighbours(ranking: Ranking) -> Neighbours:
    """The documents of all queries, the ids of the queries ascending; without scores."""
    keys = sorted(ranking)
    queries = np.repeat(np.array(keys, np.int64), [len(ranking[key]) for key in keys])
    documents = np.array([one for key in keys for one in ranking[key]], np.int64)
    return Neighbours(queries, documents, np.zeros(len(documents)))
