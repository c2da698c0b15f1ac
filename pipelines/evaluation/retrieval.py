"""Retrieval: does a query find its relevant documents among all of them?

Spark broadcasts the embeddings of the few queries. Each task embeds its documents in a stream and
keeps the ten best of each query, and Spark merges those. The driver receives the queries and ten
rows for each; with BM25, as many rows as are fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pipelines.evaluation.base import ENCODER, WHOLE, Evaluation, Figure, Form, Forms, Measured
from pipelines.evaluation.embedder import EmbedderLoader
from pipelines.evaluation.held_out import (
    held_out_sets,
    held_out_sources,
    read_held_out,
    read_held_out_alone,
)
from pipelines.evaluation.intervals import GROUP, Observations
from pipelines.evaluation.reranking import reranked
from pipelines.evaluation.rows import Batches, Row, Rows, Tables, cores_for, spread
from pipelines.spark.capacity import Shared
from pipelines.vectors.bm25 import (
    FUSED_RANKS,
    TextBlock,
    WordQueries,
    WordStatistics,
    best_by_words,
    total,
    weighted_fusion,
    word_statistics,
)
from pipelines.vectors.nearest import Neighbours, best_of, merged, nearest, rank_fusion, unit_length

DEPTH = 10
BM25_ALONE = "bm25_ndcg@10"
"""The baseline of a set's hybrid form; it says nothing of the model."""

FIGURES = (
    Figure.count("queries"),
    Figure.count("documents"),
    Figure("ndcg@10", "nDCG@10"),
    Figure("mrr@10", "MRR@10"),
    Figure("recall@1", "Recall@1"),
    Figure("recall@10", "Recall@10"),
    Figure(BM25_ALONE, "nDCG@10 of BM25", better=None),
)
EMBEDDED = "query_id long, embedding binary"
"""The rows of :func:`query_batches`."""


Relevant: TypeAlias = Set[int] | Mapping[int, float]
"""Relevant documents; the values of a mapping are the gains, all greater than 0."""
Ranking: TypeAlias = Mapping[int, Sequence[int]]
"""Ids of documents by query id, the best first; queries that find nothing may be left out."""


def ndcg_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the normalised discounted cumulative gain of a query with at least one relevant item.

    The gain at rank r (from 1; gains are 1 unless given) is divided by log2(r + 1), and the sum by
    that of an ideal ranking. Items are ranked best first.

    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", ACM TOIS
    20(4), 2002, with the discount of Burges et al., "Learning to rank using gradient descent", ICML
    2005.
    """
    gains = relevant if isinstance(relevant, Mapping) else dict.fromkeys(relevant, 1.0)
    gained = _discounted(gains.get(item, 0.0) for item in ranked[:k])
    return gained / _discounted(sorted(gains.values(), reverse=True)[:k])


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def reciprocal_rank_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return one over the rank of the first relevant item; 0 for none in the first k.

    Source: Voorhees, "The TREC-8 question answering track report", TREC 1999.
    """
    ranks = (rank for rank, item in enumerate(ranked[:k], 1) if item in relevant)
    return next((1 / rank for rank in ranks), 0.0)


def recall_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the share of the relevant items among the first k."""
    return sum(item in relevant for item in ranked[:k]) / len(relevant)


def average_precision_at(ranked: Sequence[int], relevant: Relevant, k: int) -> float:
    """Return the mean, over all relevant items, of the precision at their ranks; 0 beyond k.

    This is trec_eval's `map_cut`, and so BEIR's. sentence-transformers divides by k if more items
    are relevant. Source: Buckley and Voorhees, "Evaluating evaluation measure stability", SIGIR
    2000.
    """
    ranks = [rank for rank, item in enumerate(ranked[:k], 1) if item in relevant]
    return sum(found / rank for found, rank in enumerate(ranks, 1)) / len(relevant)


METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10")
"""The metrics of every set; the first judges it."""
_MEASURES: Mapping[str, Callable[[Sequence[int], Relevant, int], float]] = {
    "ndcg": ndcg_at,
    "mrr": reciprocal_rank_at,
    "recall": recall_at,
    "map": average_precision_at,
}


def retrieval_metrics(
    ranked: Ranking, relevant: Mapping[int, Relevant], metrics: Sequence[str] = METRICS
) -> dict[str, float]:
    """Return the means of metrics over all queries, times 100; unranked queries count as 0."""
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
class Queries:
    """The queries and their relevant documents; rows are in the order of ``ids``.

    Attributes:
        ids: [queries], int64, ascending.
        embeddings: [queries, width], float32, of length 1.
        relevant: Ids of the relevant documents with their gains, by query id.
        groups: By query id; None where each query is a group.
    """

    ids: np.ndarray
    embeddings: np.ndarray
    relevant: Mapping[int, Mapping[int, float]]
    groups: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Retrieved:
    """A model's documents by query id, the best first: :data:`DEPTH`, or as a metric needs."""

    queries: Queries
    ranked: Mapping[int, Sequence[int]]
    metrics: Sequence[str] = METRICS

    @property
    def observations(self) -> Observations:
        """Return the metrics of each query, times 100, by ascending id."""
        figures = figures_by_query(self.ranked, self.queries.relevant, self.metrics)
        items, known = np.array(sorted(self.queries.relevant), np.int64), self.queries.groups
        groups = None
        if known is not None:
            groups = np.array([known[key] for key in items.tolist()], np.int64)
        return Observations(items, {name: 100 * values for name, values in figures.items()}, groups)


@dataclass(frozen=True)
class Rankings:
    """Documents by query id, ranked by truncated embeddings and perhaps by BM25."""

    by_width: Mapping[int, Neighbours]
    by_words: Neighbours | None = None

    def without_themselves(self, depth: int) -> Rankings:
        """Return the first documents of each query, except the one with the query's own id."""
        words = None if self.by_words is None else _without_itself(self.by_words, depth)
        by_width = {width: _without_itself(found, depth) for width, found in self.by_width.items()}
        return Rankings(by_width, words)

    def in_forms(self, depth: int) -> dict[Form, Ranking]:
        """Return the first documents by each width, alone and, if ranked by words, with BM25."""
        forms: dict[Form, Ranking] = {}
        for width, found in self.by_width.items():
            forms[Form(width)] = ranking_of(best_of(found, depth))
            if self.by_words is not None:
                forms[Form(width, hybrid=True)] = _fused(found, self.by_words, depth)
        return forms


def _without_itself(found: Neighbours, depth: int) -> Neighbours:
    is_kept = found.queries != found.documents
    kept = (found.queries[is_kept], found.documents[is_kept], found.scores[is_kept])
    return best_of(Neighbours(*kept), depth)


def _fused(by_vectors: Neighbours, by_words: Neighbours, depth: int) -> Ranking:
    """Return both rankings fused as by `search --hybrid`; deeper ranks follow the first ones."""
    vectors, words = (best_of(ranking, FUSED_RANKS) for ranking in (by_vectors, by_words))
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


def arranged(tables: Tables) -> Tables:
    """Return judgements, query texts and documents, dealt to all cores.

    Args:
        tables: `asked`, with ``query_id``, ``text`` (null of a missing query: it finds nothing),
            ``document_id`` of a relevant document, perhaps its ``gain`` (1 unless given) and the
            query's ``group``; and `documents`, with ``document_id`` and ``text``. The result also
            has `queries`, a text each.
    """
    asked = tables["asked"]
    gain = "gain" if "gain" in asked.columns else "1D AS gain"
    known = [name for name in (GROUP,) if name in asked.columns]
    # Partitioned by query, so that `groupBy` below needs no second shuffle.
    texts = asked.where("text is not null").repartition(cores_for(asked), "query_id")
    return {
        "asked": asked.selectExpr("query_id", "document_id", gain, *known),
        "queries": texts.groupBy("query_id").agg({"text": "min"}).toDF("query_id", "text"),
        "documents": spread(tables["documents"]),
    }


def measure(
    tables: Mapping[str, Rows],
    load: EmbedderLoader,
    forms: Forms,
    *,
    skip_themselves: bool = False,
) -> list[Measured]:
    """Rank all documents for every query by cosine similarity, exactly; embed each text once.

    Figures are ``queries`` and ``documents`` (counts) and metrics (means over the queries, times
    100). ``forms`` are measured beside whole embeddings. With ``skip_themselves``, a query does not
    find a document with its own id.
    """
    queries = embed_queries(tables, load)
    metrics = tuple(dict.fromkeys((*METRICS, *forms.metrics)))
    shown = max(int(name.rpartition("@")[2]) for name in metrics)
    deepest = max(shown, forms.rerank_depth) if forms.reranker is not None else shown
    depth = max(FUSED_RANKS, deepest) if forms.hybrid else deepest
    # One more: the query's own document, if among them, is dropped afterwards.
    most = depth + skip_themselves
    by_width = _rank_by_widths(tables["documents"], queries, load, most, forms)
    rankings = Rankings(by_width, rank_by_words(tables, most) if forms.hybrid else None)
    rankings = rankings.without_themselves(depth) if skip_themselves else rankings
    counts = {"queries": len(queries.relevant), "documents": tables["documents"].count()}
    baseline = {}
    if rankings.by_words is not None:
        by_words = retrieval_metrics(ranking_of(rankings.by_words), queries.relevant)
        baseline = {BM25_ALONE: by_words["ndcg@10"]}
    found = rankings.in_forms(shown)
    if forms.reranker is not None:
        first = rankings.in_forms(forms.rerank_depth)[Form(hybrid=forms.hybrid)]
        again = ranking_of(reranked(tables, first, forms.reranker))
        found[forms.reranked] = {
            query: rank_fusion(first[query], again[query], forms.rerank_share)[:shown]
            for query in again
        }
    return [
        Measured(
            counts
            | retrieval_metrics(ranked, queries.relevant, metrics)
            | (baseline if form.hybrid else {}),
            Retrieved(queries, ranked, metrics),
            form,
        )
        for form, ranked in found.items()
    ]


def _rank_by_widths(
    documents: Rows, queries: Queries, load: EmbedderLoader, depth: int, forms: Forms
) -> dict[int, Neighbours]:
    """Return the best documents of each query at all widths of the forms."""
    model_width = queries.embeddings.shape[1]
    shorter = sorted((width for width in forms.widths if width < model_width), reverse=True)
    # Without lexical features, such as those of a start, an embedding is the encoder's own.
    own = model_width - forms.lexical if forms.lexical else WHOLE
    wanted = dict.fromkeys((WHOLE, *((own,) if forms.apart else ()), *shorter))
    ranked = rank_documents(documents, queries, load, depth, list(wanted))
    by_width = {WHOLE: ranked[WHOLE]}
    if forms.apart:
        by_width[ENCODER] = ranked[own]
    return by_width | {width: ranked[width] for width in shorter}


def embed_queries(tables: Mapping[str, Rows], load: EmbedderLoader) -> Queries:
    """Embed the queries, and collect them with their relevant documents."""
    relevant: dict[int, dict[int, float]] = {}
    groups: dict[int, int] = {}
    for row in tables["asked"].collect():
        relevant.setdefault(row["query_id"], {})[row["document_id"]] = row["gain"]
        if GROUP in row:
            # A query of two packages takes the lower group, the same one for all models.
            groups[row["query_id"]] = min(row[GROUP], groups.get(row["query_id"], row[GROUP]))
    embedded = embeddings_by_id(tables["queries"].map(query_batches(load), EMBEDDED))
    return Queries(
        ids=np.array(sorted(embedded), np.int64),
        embeddings=np.stack([embedded[key] for key in sorted(embedded)]),
        relevant=relevant,
        groups=groups or None,
    )


def query_batches(load: EmbedderLoader, *, as_documents: bool = False) -> Batches:
    """Return a function from ``query_id``, ``text`` to rows of :data:`EMBEDDED`."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        embedder = None
        for batch in batches:
            # Not before the first batch: a task without rows needs no model.
            embedder = embedder or load()
            embed_side = embedder.documents if as_documents else embedder.queries
            embeddings = unit_length(embed_side(batch.column("text").to_pylist()))
            blobs = pa.array([row.tobytes() for row in embeddings], pa.binary())
            yield pa.RecordBatch.from_arrays(
                [batch.column("query_id"), blobs], names=["query_id", "embedding"]
            )

    return embed


def embeddings_by_id(rows: Iterable[Row]) -> dict[int, np.ndarray]:
    """Return the embeddings of :data:`EMBEDDED` rows, float32 [width] of length 1."""
    return {row["query_id"]: np.frombuffer(row["embedding"], np.float32) for row in rows}


def rank_documents(
    documents: Rows,
    queries: Queries,
    load: EmbedderLoader,
    depth: int = DEPTH,
    widths: Sequence[int] = (WHOLE,),
) -> dict[int, Neighbours]:
    """Return the best documents of each query by their ids, by width.

    ``documents`` has ``document_id`` and ``text``. Embeddings are truncated to each of ``widths``.
    """
    schema = "width int, query long, document_id long, score double"
    with documents.shared(queries.embeddings) as shared:
        work = _nearest_batches(load, shared, depth, widths)
        rows = documents.best(work, schema, ["width", "query"], depth)
    by_width: dict[int, list[Row]] = {width: [] for width in widths}
    for row in rows:
        by_width[row["width"]].append(row)
    return {width: _neighbours(found, queries.ids, depth) for width, found in by_width.items()}


def _nearest_batches(
    load: EmbedderLoader, shared: Shared[np.ndarray], depth: int, widths: Sequence[int]
) -> Batches:
    """Return a function that finds the best of ``document_id``, ``text`` by cosine."""

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        embedder, best = None, {width: Neighbours.none() for width in widths}
        for batch in batches:
            embedder = embedder or load()
            embeddings = unit_length(embedder.documents(batch.column("text").to_pylist()))
            ids = batch.column("document_id").to_numpy()
            for width in widths:
                # Merged batch by batch, so that memory does not grow with the documents.
                asked, found = _cut_to(shared.value, width), _cut_to(embeddings, width)
                best[width] = merged(best[width], nearest(asked, found, ids, depth), depth)
        for width, of_width in best.items():
            widths_of_rows = np.full(len(of_width.queries), width, np.int32)
            yield _batch(of_width, {"width": widths_of_rows})

    return find


def _cut_to(embeddings: np.ndarray, width: int) -> np.ndarray:
    return embeddings if width == WHOLE else unit_length(embeddings[:, :width])


def _batch(found: Neighbours, columns: Mapping[str, np.ndarray]) -> pa.RecordBatch:
    named = {"query": found.queries, "document_id": found.documents, "score": found.scores}
    return pa.RecordBatch.from_pydict({**columns, **named})


def _neighbours(rows: Sequence[Row], ids: np.ndarray, depth: int) -> Neighbours:
    """Return the neighbours of ``query`` (an index of ``ids``), ``document_id``, ``score`` rows."""
    places, documents, scores = (
        np.array([row[name] for row in rows], kind)
        for name, kind in (("query", int), ("document_id", np.int64), ("score", np.float64))
    )
    return best_of(Neighbours(ids[places], documents, scores), depth)


class _Asked(NamedTuple):
    """The broadcast input of a BM25 ranking."""

    queries: WordQueries
    statistics: WordStatistics


def rank_by_words(tables: Mapping[str, Rows], depth: int) -> Neighbours:
    """Return the best documents of each query by BM25; only ones that share a word with it."""
    documents = tables["documents"]
    texts = {row["query_id"]: row["text"] for row in tables["queries"].collect()}
    ids = sorted(texts)
    queries = WordQueries.of([texts[key] for key in ids])
    # A first pass: BM25 weighs words by their frequency in all documents.
    with documents.shared(queries) as words:
        counted = documents.map(_count_batches(words), "documents long, words long, having binary")
    statistics = total(
        (
            WordStatistics(row["documents"], row["words"], np.frombuffer(row["having"], np.int64))
            for row in counted
        ),
        queries,
    )
    with documents.shared(_Asked(queries, statistics)) as asked:
        schema = "query long, document_id long, score double"
        rows = documents.best(_worded_batches(asked, depth), schema, ["query"], depth)
    return _neighbours(rows, np.array(ids, np.int64), depth)


def _count_batches(shared: Shared[WordQueries]) -> Batches:
    """Return a function that counts the words of ``text``: a row for each task."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def _worded_batches(shared: Shared[_Asked], depth: int) -> Batches:
    """Return a function that finds the best of ``document_id``, ``text`` by BM25."""

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asked = shared.value
        yield _batch(best_by_words(asked.queries, asked.statistics, _blocks(batches), depth), {})

    return find


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[TextBlock]:
    for batch in batches:
        yield batch.column("text").to_pylist(), batch.column("document_id").to_numpy()


EVALUATION = Evaluation(
    name="retrieval",
    part="retrieval",
    figures=FIGURES,
    sets=lambda config: (
        [*held_out_sets(config), *held_out_sources(config)] if config.evaluation.retrieval else ()
    ),
    read=read_held_out,
    read_fewer=read_held_out_alone,
    arrange=arranged,
    measure=measure,
    has_forms=True,
    held_out=True,
)
