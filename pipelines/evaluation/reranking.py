"""Rankings that a cross-encoder ranks again, on executors or in this process.

Each task scores its own documents with the queries that have found them, so no text travels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.evaluation.rows import Batches, Rows
from pipelines.models.rerankers.folder import Reranker
from pipelines.spark.capacity import Shared
from pipelines.vectors.nearest import Neighbours, best_of

_SCORED = "query long, document_id long, score double"
PRECISION = "fp32"
"""Figures do not depend on the processor."""


class _Found(NamedTuple):
    """The broadcast input: texts of queries, and the queries that have found a document, by id."""

    texts: Mapping[int, str]
    by_document: Mapping[int, Sequence[int]]


def reranked(
    tables: Mapping[str, Rows],
    ranked: Mapping[int, Sequence[int]],
    reranker: Reranker,
    threads: int = 1,
) -> Neighbours:
    """Return the documents of each query in the order of a cross-encoder's scores.

    ``tables`` are those of a retrieval set, ``ranked`` the ids of documents by query id. Ties go to
    the lower id. ``threads`` are those of a task.
    """
    texts = {row["query_id"]: row["text"] for row in tables["queries"].collect()}
    by_document: dict[int, list[int]] = {}
    for query, documents in ranked.items():
        for document in documents:
            by_document.setdefault(document, []).append(query)
    with tables["documents"].shared(_Found(texts, by_document)) as shared:
        rows = tables["documents"].map(_scored_batches(shared, reranker, threads), _SCORED)
    found = Neighbours(
        np.array([row["query"] for row in rows], np.int64),
        np.array([row["document_id"] for row in rows], np.int64),
        np.array([row["score"] for row in rows], np.float64),
    )
    return best_of(found, max(map(len, ranked.values()), default=1))


def _scored_batches(shared: Shared[_Found], reranker: Reranker, threads: int) -> Batches:
    """Return a function that scores ``document_id``, ``text`` with the queries of each."""

    def score(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pipelines.models.rerankers.torch import cached_cross_encoder
        from pipelines.vectors.embedding import task_device

        found = shared.value
        for batch in batches:
            ids, texts = (batch.column(name).to_pylist() for name in ("document_id", "text"))
            pairs = [
                (query, document, text)
                for document, text in zip(ids, texts, strict=True)
                for query in found.by_document.get(document, ())
            ]
            if not pairs:
                continue
            cross_encoder = cached_cross_encoder(
                reranker, PRECISION, task_device("torch"), logits=False, threads=threads
            )
            scores = cross_encoder(
                [found.texts[query] for query, _, _ in pairs], [text for _, _, text in pairs]
            )
            yield pa.RecordBatch.from_pydict(
                {
                    "query": pa.array([query for query, _, _ in pairs], pa.int64()),
                    "document_id": pa.array([document for _, document, _ in pairs], pa.int64()),
                    "score": pa.array(scores.astype(np.float64)),
                }
            )

    return score
