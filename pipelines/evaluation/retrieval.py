"""Retrieval: does a query find its documents among all of them?

Queries are few: their embeddings are broadcast. Documents may be many: each partition is embedded
in a stream and keeps its ten best a query, and Spark merges those. The driver receives the
queries and ten rows for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError
from pipelines.evaluation.embedder import (
    Batches,
    EmbedderLoader,
    embedder_loader,
    spread,
    unit_length,
)
from pipelines.evaluation.metrics import Relevant, ndcg_at, recall_at, reciprocal_rank_at
from pipelines.evaluation.nearest import Neighbours, merged, nearest
from pipelines.frames import read_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEPTH = 10

METRICS: Mapping[str, tuple[Callable[[Sequence[int], Relevant, int], float], int]] = {
    "ndcg@10": (ndcg_at, 10),
    "mrr@10": (reciprocal_rank_at, 10),
    "recall@1": (recall_at, 1),
    "recall@10": (recall_at, 10),
}


@dataclass(frozen=True)
class Queries:
    """What is asked, and what should be found; rows are in the order of ``ids``.

    Attributes:
        ids: [queries], int64, ascending.
        embeddings: [queries, width], float32, of length 1.
        relevant: Ids of the relevant documents with their gains, by query id.
    """

    ids: np.ndarray
    embeddings: np.ndarray
    relevant: Mapping[int, Mapping[int, float]]


@dataclass(frozen=True)
class Retrieved:
    """What a model has found.

    Attributes:
        queries: What was asked.
        ranked: Ids of the :data:`DEPTH` best documents by query id, the best first.
    """

    queries: Queries
    ranked: Mapping[int, Sequence[int]]


OnRetrieved: TypeAlias = Callable[[Retrieved], None]


def evaluate_retrieval(
    session: SparkSession,
    model_folder: Path | str,
    queries_path: Path,
    documents_path: Path,
    on_retrieved: OnRetrieved = lambda found: None,
) -> dict[str, float]:
    """Ranks all documents for every query by cosine similarity, exactly.

    Args:
        session: The Spark session.
        model_folder: The model, where every executor can read it.
        queries_path: Parquet: ``query_id`` (int64), ``text`` and ``document_id`` (int64) of a
            relevant document; a row for each where there are several.
        documents_path: Parquet: ``document_id`` (int64, unique) and ``text``.
        on_retrieved: Called with what was found, of which the figures are the summary.

    Returns:
        ``queries`` and ``documents`` (counts), ``ndcg@10``, ``mrr@10``, ``recall@1`` and
        ``recall@10`` (means over the queries, times 100).

    Raises:
        InputError: A table is missing, lacks a column or is empty; or there is no model.
    """
    asked, documents = held_out_tables(session, queries_path, documents_path)
    load = embedder_loader(session, model_folder)
    queries = embed_queries(asked, load)
    ranked = rank_documents(documents, queries, load)
    on_retrieved(Retrieved(queries, ranked))
    return {
        "queries": len(queries.ids),
        "documents": documents.count(),
        **retrieval_metrics(ranked, queries.relevant),
    }


def retrieval_metrics(
    ranked: Mapping[int, Sequence[int]], relevant: Mapping[int, Relevant]
) -> dict[str, float]:
    """The means over all queries of :data:`METRICS`, times 100.

    Args:
        ranked: Document ids, the best first, by query id.
        relevant: Relevant document ids by query id; what is not in ``ranked`` counts as 0.
    """
    return {
        name: 100
        * float(
            np.mean([metric(ranked.get(key, ()), wanted, k) for key, wanted in relevant.items()])
        )
        for name, (metric, k) in METRICS.items()
    }


def embed_queries(asked: DataFrame, load: EmbedderLoader) -> Queries:
    """Embeds the queries on the executors and collects them.

    Args:
        asked: ``query_id``, ``text``, ``document_id`` and, if it is not always 1, ``gain``.
        load: Loads the model on an executor.
    """
    graded = asked if "gain" in asked.columns else asked.selectExpr("*", "1D AS gain")
    relevant = relevant_of(
        tuple(row) for row in graded.select("query_id", "document_id", "gain").collect()
    )
    texts = spread(asked.groupBy("query_id").agg({"text": "min"}).toDF("query_id", "text"))
    rows = texts.mapInArrow(query_batches(load), "query_id long, embedding binary").collect()
    return queries_of(((row["query_id"], row["embedding"]) for row in rows), relevant)


def relevant_of(rows: Iterable[tuple[int, int, float]]) -> dict[int, dict[int, float]]:
    """Gains by query and document, of rows of these three."""
    relevant: dict[int, dict[int, float]] = {}
    for query, document, gain in rows:
        relevant.setdefault(query, {})[document] = gain
    return relevant


def queries_of(
    rows: Iterable[tuple[int, bytes]], relevant: Mapping[int, Mapping[int, float]]
) -> Queries:
    """Queries of their ids and embeddings (float32, as :func:`query_batches` writes them)."""
    found = sorted(rows)
    return Queries(
        ids=np.array([key for key, _ in found], np.int64),
        embeddings=np.stack([np.frombuffer(embedding, np.float32) for _, embedding in found]),
        relevant=relevant,
    )


def rank_documents(
    documents: DataFrame, queries: Queries, load: EmbedderLoader, depth: int = DEPTH
) -> dict[int, list[int]]:
    """The ids of the best documents of each query, the best first.

    Args:
        documents: ``document_id``, ``text``.
        queries: From :func:`embed_queries`.
        load: Loads the model on an executor.
        depth: Documents of a query.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody uses

    shared = documents.sparkSession.sparkContext.broadcast(queries.embeddings)
    try:
        best_first = Window.partitionBy("query").orderBy(F.desc("score"), F.asc("document_id"))
        best = (
            spread(documents)
            .mapInArrow(
                neighbour_batches(load, shared, depth), "query long, document_id long, score double"
            )
            .withColumn("rank", F.row_number().over(best_first))
            .where(F.col("rank") <= depth)
            .collect()
        )
    finally:
        shared.destroy()
    ranked: dict[int, list[int]] = {}
    for row in sorted(best, key=lambda row: (row["query"], row["rank"])):
        ranked.setdefault(int(queries.ids[row["query"]]), []).append(row["document_id"])
    return ranked


def query_batches(load: EmbedderLoader) -> Batches:
    """Embeds ``query_id``, ``text``: ``query_id``, ``embedding`` (float32 of length 1, bytes)."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            embeddings = unit_length(embedder(batch.column("text").to_pylist()))
            blobs = pa.array([row.tobytes() for row in embeddings], pa.binary())
            yield pa.RecordBatch.from_arrays(
                [batch.column("query_id"), blobs], names=["query_id", "embedding"]
            )

    return embed


def neighbour_batches(load: EmbedderLoader, shared: Any, depth: int) -> Batches:
    """Of ``document_id``, ``text`` the best for each query: ``query``, ``document_id``, ``score``.

    Args:
        load: Loads the model on an executor.
        shared: Its ``value`` is the queries' embeddings, as a broadcast has it.
        depth: Documents of a query.
    """

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder, best = None, Neighbours.none()
        for batch in batches:
            embedder = embedder or load()
            embeddings = unit_length(embedder(batch.column("text").to_pylist()))
            ids = batch.column("document_id").to_numpy()
            best = merged(best, nearest(shared.value, embeddings, ids, depth), depth)
        yield pa.RecordBatch.from_arrays(
            [pa.array(best.queries), pa.array(best.documents), pa.array(best.scores)],
            names=["query", "document_id", "score"],
        )

    return find


def without_themselves(ranked: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
    """What was found without the document of the query's own id."""
    return {key: [item for item in found if item != key][:DEPTH] for key, found in ranked.items()}


def held_out_tables(
    session: SparkSession, queries_path: Path, documents_path: Path
) -> tuple[DataFrame, DataFrame]:
    """The held-out queries and documents; see :func:`evaluate_retrieval`."""
    asked = _table(session, queries_path, ("query_id", "text", "document_id"))
    return asked, _table(session, documents_path, ("document_id", "text"))


def _table(session: SparkSession, path: Path, columns: Sequence[str]) -> DataFrame:
    """The columns of a Parquet file or folder, rows with nulls left out."""
    remedy = "run `sentence-pipelines prepare` with the same settings first"
    if not path.exists():
        raise InputError("prepared.folder", f"there is no {path}", remedy)
    frame = session.read.parquet(read_path(path.absolute()))
    for column in columns:
        if column not in frame.columns:
            raise InputError("prepared.folder", f"{path} has no column `{column}`", remedy)
    frame = frame.select(*columns).dropna()
    if frame.isEmpty():
        raise InputError("prepared.folder", f"{path} is empty", remedy)
    return frame
