"""The documents of a retrieval set ranked by the words of its queries: BM25."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.evaluation.base import SnapshotTables, Tables
from pipelines.evaluation.best_rows import best_rows
from pipelines.evaluation.embedder import Batches, spread
from pipelines.evaluation.nearest import Neighbours
from pipelines.evaluation.rankings import neighbours_of
from pipelines.lexical.bm25 import (
    TextBlock,
    WordQueries,
    WordStatistics,
    best_by_words,
    total,
    word_statistics,
)
from pipelines.spark.capacity import Shared, shared_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Asked(NamedTuple):
    """What every task ranks by."""

    queries: WordQueries
    statistics: WordStatistics


def rank_by_words(tables: Tables, depth: int) -> Neighbours:
    """The best documents of each query by BM25, on the executors; queries by their ids.

    Args:
        tables: `asked` and `documents` of a retrieval set.
        depth: Documents of a query; fewer where fewer share a word with it.
    """
    documents = tables["documents"]
    asked = tables["asked"].where("text is not null")
    rows = asked.groupBy("query_id").agg({"text": "min"}).collect()
    texts = dict(sorted(tuple(row) for row in rows))
    queries = WordQueries.of(list(texts.values()))
    statistics = _statistics(documents, queries)
    with shared_value(documents.sparkSession, _Asked(queries, statistics)) as shared:
        found = spread(documents).mapInArrow(
            _best_batches(shared, depth), "query long, document_id long, score double"
        )
        best = best_rows(found, ["query"], depth)
    ids = list(texts)
    return neighbours_of(
        [(ids[row["query"]], row["document_id"], row["score"]) for row in best], depth
    )


def _statistics(documents: DataFrame, queries: WordQueries) -> WordStatistics:
    with shared_value(documents.sparkSession, queries) as shared:
        parts = spread(documents).mapInArrow(
            _count_batches(shared), "documents long, words long, having binary"
        )
        rows = parts.collect()
    counted = (
        WordStatistics(row["documents"], row["words"], np.frombuffer(row["having"], np.int64))
        for row in rows
    )
    return total(counted, queries)


def _count_batches(shared: Shared[WordQueries]) -> Batches:
    """Counts words in ``text``; a row of ``documents``, ``words``, ``having`` of each task."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        texts = (text for batch in batches for text in batch.column("text").to_pylist())
        found = word_statistics(shared.value, texts)
        yield pa.RecordBatch.from_pydict(
            {
                "documents": pa.array([found.documents], pa.int64()),
                "words": pa.array([found.words], pa.int64()),
                "having": pa.array([found.having.tobytes()], pa.binary()),
            }
        )

    return count


def _best_batches(shared: Shared[_Asked], depth: int) -> Batches:
    """Of ``document_id``, ``text`` the best: ``query``, ``document_id``, ``score``."""

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        asked = shared.value
        best = best_by_words(asked.queries, asked.statistics, _blocks(batches), depth)
        columns = (best.queries, best.documents, best.scores)
        yield pa.RecordBatch.from_arrays(
            [*map(pa.array, columns)], names=["query", "document_id", "score"]
        )

    return find


def rank_snapshot_by_words(tables: SnapshotTables, depth: int) -> Neighbours:
    """The same as :func:`rank_by_words` in this process."""
    asked = pa.Table.from_batches(list(tables("asked")))
    texts: dict[int, str] = {}
    for row in asked.select(["query_id", "text"]).drop_null().to_pylist():
        texts[row["query_id"]] = min(row["text"], texts.get(row["query_id"], row["text"]))
    ids = sorted(texts)
    queries = WordQueries.of([texts[key] for key in ids])
    counted = (text for some, _ in _blocks(tables("documents")) for text in some)
    statistics = word_statistics(queries, counted)
    found = best_by_words(queries, statistics, _blocks(tables("documents")), depth)
    return Neighbours(np.array(ids, np.int64)[found.queries], found.documents, found.scores)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[TextBlock]:
    for batch in batches:
        yield batch.column("text").to_pylist(), batch.column("document_id").to_numpy()
