"""Retrieval: does a query find its documents among all of them?

Queries are few: their embeddings are broadcast. Documents may be many: each partition is embedded
in a stream and keeps its ten best a query, and Spark merges those. The driver receives the
queries and ten rows for each; where BM25 is to help, as many as are fused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.evaluation.base import (
    BATCH_ROWS,
    WHOLE,
    ByForm,
    Evaluation,
    Figure,
    Form,
    Nested,
    OnObserved,
    SnapshotTables,
    Tables,
)
from pipelines.evaluation.embedder import Batches, EmbedderLoader, cores_for, spread
from pipelines.evaluation.held_out import (
    held_out_sets,
    held_out_sources,
    read_held_out,
    read_held_out_alone,
)
from pipelines.evaluation.intervals import GROUP, Observations, Observed
from pipelines.evaluation.rankings import (
    Ranking,
    Rankings,
    Relevant,
    average_precision_at,
    best_rows,
    ndcg_at,
    neighbours_by_width,
    neighbours_of,
    ranking_of,
    recall_at,
    reciprocal_rank_at,
)
from pipelines.spark.capacity import Shared, shared_value
from pipelines.vectors.bm25 import (
    FUSED_RANKS,
    TextBlock,
    WordQueries,
    WordStatistics,
    best_by_words,
    total,
    word_statistics,
)
from pipelines.vectors.nearest import Neighbours, merged, nearest, unit_length

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


DEPTH = 10
BM25_ALONE = "bm25_ndcg@10"
"""What the hybrid form of a set is to be compared with; it says nothing of the model."""

FIGURES = (
    Figure.count("queries"),
    Figure.count("documents"),
    Figure("ndcg@10", "nDCG@10"),
    Figure("mrr@10", "MRR@10"),
    Figure("recall@1", "Recall@1"),
    Figure("recall@10", "Recall@10"),
    Figure(BM25_ALONE, "nDCG@10 of BM25", better=None),
)
METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10")
"""Those that are always measured; a set is judged by the first."""
_MEASURES: Mapping[str, Callable[[Sequence[int], Relevant, int], float]] = {
    "ndcg": ndcg_at,
    "mrr": reciprocal_rank_at,
    "recall": recall_at,
    "map": average_precision_at,
}


@dataclass(frozen=True)
class Queries:
    """The queries, and what should be found; rows are in the order of ``ids``.

    Attributes:
        ids: [queries], int64, ascending.
        embeddings: [queries, width], float32, of length 1.
        relevant: Ids of the relevant documents with their gains, by query id.
        groups: Of the queries, by query id; None where each is its own.
    """

    ids: np.ndarray
    embeddings: np.ndarray
    relevant: Mapping[int, Mapping[int, float]]
    groups: Mapping[int, int] | None = None


@dataclass(frozen=True)
class Retrieved:
    """What a model has found.

    Attributes:
        queries: What was asked.
        ranked: Ids of the best documents by query id, the best first: :data:`DEPTH`, or as many as
            a metric counts.
        metrics: Which are measured.
    """

    queries: Queries
    ranked: Mapping[int, Sequence[int]]
    metrics: Sequence[str] = METRICS

    @property
    def observations(self) -> Observations:
        """The metrics of each query, times 100, by ascending id."""
        figures = figures_by_query(self.ranked, self.queries.relevant, self.metrics)
        items, of = np.array(sorted(self.queries.relevant), np.int64), self.queries.groups
        groups = None if of is None else np.array([of[key] for key in items.tolist()], np.int64)
        return Observations(items, {name: 100 * values for name, values in figures.items()}, groups)


def measure(
    tables: Tables,
    load: EmbedderLoader,
    on_observed: OnObserved,
    *,
    skip_themselves: bool = False,
) -> dict[str, float]:
    """Ranks all documents for every query by cosine similarity, exactly.

    Args:
        tables: `asked`, with ``query_id``, ``text``, ``document_id`` of a relevant document,
            perhaps its ``gain`` and the query's ``group``, and `documents`, with ``document_id``
            and ``text``.
        load: Loads the model on an executor.
        on_observed: Called with what was found, of which the figures are the summary.
        skip_themselves: A query does not find a document of its own id.

    Returns:
        ``queries`` and ``documents`` (counts) and :data:`METRICS` (means over the queries, times
        100).
    """
    by_form = measure_nested(
        tables,
        load,
        lambda _, found: on_observed(found),
        (),
        hybrid=False,
        skip_themselves=skip_themselves,
    )
    return by_form[Form()]


def measure_nested(
    tables: Tables,
    load: EmbedderLoader,
    on_observed: Callable[[Form, Observed], None],
    dimensions: Sequence[int],
    hybrid: bool,
    metrics: Sequence[str] = (),
    *,
    skip_themselves: bool = False,
) -> ByForm:
    """The same in several forms; see :class:`pipelines.evaluation.base.Nested`.

    Texts are embedded once.
    """
    queries = embed_queries(tables["asked"], load)
    names = tuple(dict.fromkeys((*METRICS, *metrics)))
    widths, shown = _widths(queries, dimensions), _deepest(names)
    depth = max(FUSED_RANKS, shown) if hybrid else shown
    most = depth + skip_themselves
    best = rank_documents(tables["documents"], queries, load, most, widths)
    rankings = Rankings(best, rank_by_words(tables, most) if hybrid else None)
    rankings = rankings.without_themselves(depth) if skip_themselves else rankings
    documents = tables["documents"].count()
    forms = rankings.in_forms(shown)
    for form, ranked in forms.items():
        on_observed(form, Retrieved(queries, ranked, names))
    return _figures(queries, documents, forms, rankings.by_words, names)


def measure_snapshot(
    tables: SnapshotTables, load: EmbedderLoader, *, skip_themselves: bool = False
) -> dict[str, float]:
    """The same as :func:`measure` in this process; `asked` has its ``gain``."""
    by_form = measure_snapshot_nested(tables, load, (), False, skip_themselves=skip_themselves)
    return by_form[Form()]


def measure_snapshot_nested(
    tables: SnapshotTables,
    load: EmbedderLoader,
    dimensions: Sequence[int],
    hybrid: bool,
    metrics: Sequence[str] = (),
    *,
    skip_themselves: bool = False,
) -> ByForm:
    """The same as :func:`measure_nested` in this process; `asked` has its ``gain``."""
    asked = pa.Table.from_batches(list(tables("asked")))
    judged = asked.select(["query_id", "document_id", "gain"]).to_pylist()
    relevant = relevant_of(tuple(row.values()) for row in judged)
    there = asked.select(["query_id", "text"]).drop_null()
    texts = there.group_by("query_id").aggregate([("text", "min")])
    texts = texts.rename_columns({"text_min": "text"}).select(["query_id", "text"])
    embedded = _rows(query_batches(load)(texts.to_batches(BATCH_ROWS)))
    queries = queries_of(((row["query_id"], row["embedding"]) for row in embedded), relevant)

    documents = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal documents
        for batch in tables("documents"):
            documents += batch.num_rows
            yield batch

    names = tuple(dict.fromkeys((*METRICS, *metrics)))
    widths, shown = _widths(queries, dimensions), _deepest(names)
    depth = max(FUSED_RANKS, shown) if hybrid else shown
    most = depth + skip_themselves
    find = neighbour_batches(load, Shared(queries.embeddings), most, widths)
    best = neighbours_by_width(_rows(find(counted())), queries.ids, widths, most)
    rankings = Rankings(best, rank_snapshot_by_words(tables, most) if hybrid else None)
    rankings = rankings.without_themselves(depth) if skip_themselves else rankings
    forms = rankings.in_forms(shown)
    return _figures(queries, documents, forms, rankings.by_words, names)


def _deepest(metrics: Sequence[str]) -> int:
    """How many documents of a query count."""
    return max(int(name.rpartition("@")[2]) for name in metrics)


def _widths(queries: Queries, dimensions: Sequence[int]) -> list[int]:
    """The whole width, then those that are less, the largest first."""
    shorter = {one for one in dimensions if one < queries.embeddings.shape[1]}
    return [WHOLE, *sorted(shorter, reverse=True)]


def _figures(
    queries: Queries,
    documents: int,
    forms: Mapping[Form, Ranking],
    by_words: Neighbours | None,
    metrics: Sequence[str],
) -> ByForm:
    counts = {"queries": len(queries.relevant), "documents": documents}
    figures = {
        form: counts | retrieval_metrics(ranked, queries.relevant, metrics)
        for form, ranked in forms.items()
    }
    if by_words is not None:
        alone = retrieval_metrics(ranking_of(by_words), queries.relevant)["ndcg@10"]
        figures |= {form: figures[form] | {BM25_ALONE: alone} for form in forms if form.hybrid}
    return figures


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


def with_gains(tables: Tables) -> Tables:
    """The tables of a snapshot: all relevant documents have a gain of 1."""
    return {**tables, "asked": tables["asked"].selectExpr("*", "1D AS gain")}


def retrieval_metrics(
    ranked: Mapping[int, Sequence[int]],
    relevant: Mapping[int, Relevant],
    metrics: Sequence[str] = METRICS,
) -> dict[str, float]:
    """The means of metrics over all queries, times 100.

    Args:
        ranked: Document ids, the best first, by query id.
        relevant: Relevant document ids by query id; what is not in ``ranked`` counts as 0.
        metrics: Their names, each with its cut-off.
    """
    by_query = figures_by_query(ranked, relevant, metrics)
    return {name: 100 * float(np.mean(figures)) for name, figures in by_query.items()}


def figures_by_query(
    ranked: Mapping[int, Sequence[int]],
    relevant: Mapping[int, Relevant],
    metrics: Sequence[str] = METRICS,
) -> dict[str, np.ndarray]:
    """Each of some metrics for each query: [queries], from 0 to 1, by ascending id.

    Arguments as for :func:`retrieval_metrics`.
    """
    keys = sorted(relevant)
    figures = {}
    for name in metrics:
        metric, _, cutoff = name.partition("@")
        measured, k = _MEASURES[metric], int(cutoff)
        figures[name] = np.array([measured(ranked.get(key, ()), relevant[key], k) for key in keys])
    return figures


def embed_queries(asked: DataFrame, load: EmbedderLoader, *, as_documents: bool = False) -> Queries:
    """Embeds the queries on the executors and collects them.

    Args:
        asked: ``query_id``, ``text`` (null of a query that is missing and finds nothing),
            ``document_id``, if it is not always 1 ``gain``, and if it is known ``group``.
        load: Loads the model on an executor.
        as_documents: Embed them as what is to be found.
    """
    graded = asked if "gain" in asked.columns else asked.selectExpr("*", "1D AS gain")
    known = [name for name in (GROUP,) if name in asked.columns]
    rows = graded.select("query_id", "document_id", "gain", *known).collect()
    relevant = relevant_of((row[0], row[1], row[2]) for row in rows)
    # A query that two packages ask is of one of them, the same for all models.
    groups = dict(sorted(((row[0], row[3]) for row in rows), reverse=True)) if known else None
    # In a partition for each core, of which the groups need no further shuffle.
    dealt = asked.where("text is not null").repartition(cores_for(asked), "query_id")
    texts = dealt.groupBy("query_id").agg({"text": "min"}).toDF("query_id", "text")
    work = query_batches(load, as_documents=as_documents)
    embedded = texts.mapInArrow(work, "query_id long, embedding binary").collect()
    return queries_of(((row["query_id"], row["embedding"]) for row in embedded), relevant, groups)


def relevant_of(rows: Iterable[tuple[int, int, float]]) -> dict[int, dict[int, float]]:
    """Gains by query and document, of rows of these three."""
    relevant: dict[int, dict[int, float]] = {}
    for query, document, gain in rows:
        relevant.setdefault(query, {})[document] = gain
    return relevant


def queries_of(
    rows: Iterable[tuple[int, bytes]],
    relevant: Mapping[int, Mapping[int, float]],
    groups: Mapping[int, int] | None = None,
) -> Queries:
    """Queries of their ids and embeddings (float32, as :func:`query_batches` writes them)."""
    found = sorted(rows)
    return Queries(
        ids=np.array([key for key, _ in found], np.int64),
        embeddings=np.stack([np.frombuffer(embedding, np.float32) for _, embedding in found]),
        relevant=relevant,
        groups=groups,
    )


def rank_documents(
    documents: DataFrame,
    queries: Queries,
    load: EmbedderLoader,
    depth: int = DEPTH,
    widths: Sequence[int] = (WHOLE,),
) -> dict[int, Neighbours]:
    """The best documents of each query, by their ids.

    Args:
        documents: ``document_id``, ``text``.
        queries: From :func:`embed_queries`.
        load: Loads the model on an executor.
        depth: Documents of a query.
        widths: To which embeddings are cut.

    Returns:
        By width.
    """
    with shared_value(documents.sparkSession, queries.embeddings) as shared:
        found = spread(documents).mapInArrow(
            neighbour_batches(load, shared, depth, widths),
            "width int, query long, document_id long, score double",
        )
        best = best_rows(found, ["width", "query"], depth)
    return neighbours_by_width((row.asDict() for row in best), queries.ids, widths, depth)


def query_batches(load: EmbedderLoader, *, as_documents: bool = False) -> Batches:
    """Embeds ``query_id``, ``text``: ``query_id``, ``embedding`` (float32 of length 1, bytes)."""

    def embed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder = None
        for batch in batches:
            embedder = embedder or load()
            embed_side = embedder.documents if as_documents else embedder.queries
            embeddings = unit_length(embed_side(batch.column("text").to_pylist()))
            blobs = pa.array([row.tobytes() for row in embeddings], pa.binary())
            yield pa.RecordBatch.from_arrays(
                [batch.column("query_id"), blobs], names=["query_id", "embedding"]
            )

    return embed


def neighbour_batches(
    load: EmbedderLoader,
    shared: Shared[np.ndarray],
    depth: int,
    widths: Sequence[int] = (WHOLE,),
) -> Batches:
    """Of ``document_id``, ``text`` the best: ``width``, ``query``, ``document_id``, ``score``.

    Args:
        load: Loads the model on an executor.
        shared: The queries' embeddings.
        depth: Documents of a query.
        widths: To which embeddings are cut.
    """

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs on an executor."""
        embedder, best = None, {width: Neighbours.none() for width in widths}
        for batch in batches:
            embedder = embedder or load()
            embeddings = unit_length(embedder.documents(batch.column("text").to_pylist()))
            ids = batch.column("document_id").to_numpy()
            for width in widths:
                asked, found = cut_to(shared.value, width), cut_to(embeddings, width)
                best[width] = merged(best[width], nearest(asked, found, ids, depth), depth)
        for width, of_width in best.items():
            columns = (of_width.queries, of_width.documents, of_width.scores)
            yield pa.RecordBatch.from_arrays(
                [pa.array(np.full(len(columns[0]), width, np.int32)), *map(pa.array, columns)],
                names=["width", "query", "document_id", "score"],
            )

    return find


def cut_to(embeddings: np.ndarray, width: int) -> np.ndarray:
    """The first numbers of each row, scaled to length 1; all of them for :data:`WHOLE`."""
    return embeddings if width == WHOLE else unit_length(embeddings[:, :width])


EVALUATION = Evaluation(
    name="retrieval",
    part="retrieval",
    figures=FIGURES,
    sets=lambda config: (
        [*held_out_sets(config), *held_out_sources(config)] if config.evaluation.retrieval else ()
    ),
    read=read_held_out,
    read_fewer=read_held_out_alone,
    measure=measure,
    snapshot=with_gains,
    measure_snapshot=measure_snapshot,
    nested=Nested(measure_nested, measure_snapshot_nested),
    held_out=True,
)
