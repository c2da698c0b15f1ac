"""Search by text: rows of a table found by vectors, or by vectors and words.

Queries are embedded with the model of the table. Vectors find meaning; words find names, numbers
and rare terms unknown to the model (:mod:`pipelines.vectors.bm25`). A search by words reads all
texts twice: to count the words of the queries, and to score. Executors share both passes as in an
exact search by vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelines.arrow_columns import as_text
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.models.identity import has_embedded
from pipelines.models.inference.backends import INT8
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.rerankers.folder import Reranker
from pipelines.spark.capacity import Shared, default_parallelism, shared_value
from pipelines.spark.errors import executor_failures
from pipelines.spark.parquet_parts import read_footers
from pipelines.spark.tasks import collect_from_tasks
from pipelines.tokens.router import side_of
from pipelines.vectors.bm25 import (
    FUSED_RANKS,
    TextBlock,
    WordQueries,
    WordStatistics,
    best_by_words,
    ranks_of,
    total,
    weighted_fusion,
    word_statistics,
)
from pipelines.vectors.embedding import (
    embedding_options,
    model_folder,
    prompts_of,
    shortened,
)
from pipelines.vectors.exact import best_of_files, deal, search_table
from pipelines.vectors.index import build_index, has_index, search_index
from pipelines.vectors.nearest import SCORE_DECIMALS, Neighbours, rank_fusion, unit_length
from pipelines.vectors.parts import read_rows
from pipelines.vectors.store import VectorFile, VectorTable, on_this_machine, rows_at, vectors_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PROCESS_BYTES = 2**30
"""Most bytes of vectors, as float32, to search in this process rather than on executors."""
IN_PROCESS_TEXT_BYTES = 2**28
"""Most bytes of texts to count words of in this process: half a minute on one core."""


@dataclass(frozen=True)
class Hit:
    """A found row.

    ``rank`` starts at 1. ``position`` is the row's in the table; ``key`` is None in a table without
    a column of keys. ``by_vectors`` and ``by_words`` are ranks by cosine and by BM25 alone;
    None if unknown or below the :func:`candidates`. ``score`` is that of a cross-encoder, if one
    has ranked the rows.
    """

    query: int
    rank: int
    cosine: float
    position: int
    text: str | None
    key: str | None = None
    by_vectors: int | None = None
    by_words: int | None = None
    score: float | None = None


def read_queries(path: str | Path) -> list[str]:
    """Return the non-blank lines of a file.

    Raises:
        InputError: It cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} cannot be read ({error})"
        raise InputError("--queries", problem, "Name a text file") from None
    return [line.strip() for line in lines if line.strip()]


def fits_in_process(table: VectorTable, *, hybrid: bool = False) -> bool:
    """Return whether a search needs no executors; a hybrid one reads footers to tell.

    Raises:
        InputError: The search is hybrid, and the table has no texts.
    """
    if hybrid and text_bytes(table) > IN_PROCESS_TEXT_BYTES:
        return False
    return 4 * table.rows * table.dimensions <= IN_PROCESS_BYTES


def text_bytes(table: VectorTable) -> int:
    """Return the bytes of a table's texts, uncompressed but encoded, from its footers.

    Raises:
        InputError: The table has no texts.
    """
    column, size = text_column(table), 0
    for footer in read_footers([file.path for file in table.files]):
        paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
        place = paths.index(column)
        groups = map(footer.row_group, range(footer.num_row_groups))
        size += sum(group.column(place).total_uncompressed_size for group in groups)
    return size


def text_column(table: VectorTable, option: str = "--hybrid") -> str:
    """Return the column of a table's texts, which a command's option reads.

    Raises:
        InputError: No embedding job has recorded it.
    """
    if table.text is None:
        raise InputError(
            "embedding.output",
            f"{table.folder} does not name its column of texts, which {option} reads",
            f"Search it without {option}, or name a table that `embed` has written",
        )
    return table.text


def find_texts(
    table: VectorTable,
    queries: Sequence[str],
    k: int,
    *,
    session: SparkSession | None = None,
    indexed: bool = False,
    hybrid: bool = False,
    backend: str = "auto",
    model: str | Location | None = None,
) -> list[Hit]:
    """Find the k nearest rows of each query, the best first.

    Args:
        session: Searches, or builds an index, on its executors; without one, this process searches.
        indexed: Search the table's index; the session builds it if there is none.
        hybrid: Also rank by the words of the queries, and fuse both rankings.
        backend: Embeds the queries.
        model: Folder of the table's model, if it is not in the place named by the table.

    Raises:
        InputError: There is no query, the table's model or index is missing, the model has changed,
            or there are no texts to find words in.
        PipelineError: An executor could not search.
    """
    if hybrid:
        text_column(table)
    vectors = embed_queries(table, queries, backend, model)
    if indexed and not has_index(table) and session is not None:
        build_index(session, table)
    if not indexed and session is None:
        # Every search reads all rows, so one copy pays off.
        table = on_this_machine(table)
    search = search_index if indexed else search_table
    nearest = search(table, vectors, candidates(k) if hybrid else k, session)
    if not hybrid:
        return _hits(table, nearest, nearest.scores)
    fused = fuse_with_words(table, queries, vectors, nearest, k, session)
    return _hits(table, fused.found, fused.cosines, fused)


def reranked(
    hits: Sequence[Hit],
    queries: Sequence[str],
    reranker: Reranker,
    k: int,
    share: float = 1.0,
) -> list[Hit]:
    """Rank the hits of each query again by a cross-encoder, and return its k best.

    ``share`` is the weight of its ranking beside the one before it, see
    :func:`.nearest.rank_fusion`. In its ranking, rows without a text come last. Equal scores keep
    their order.

    Raises:
        InputError: The cross-encoder cannot be loaded.
    """
    from pipelines.models.rerankers.torch import CrossEncoder

    known = [hit for hit in hits if hit.text is not None]
    score = CrossEncoder(reranker)
    scores = score([queries[hit.query] for hit in known], [str(hit.text) for hit in known])
    scored = iter(scores.tolist())
    hits = [hit if hit.text is None else replace(hit, score=next(scored)) for hit in hits]
    found = []
    for _, of_query in groupby(hits, key=lambda hit: hit.query):
        first = [*of_query]
        order = sorted(first, key=lambda hit: np.inf if hit.score is None else -hit.score)
        best = rank_fusion(first, order, share)[:k]
        found += [replace(hit, rank=rank) for rank, hit in enumerate(best, start=1)]
    return found


def embed_queries(
    table: VectorTable,
    queries: Sequence[str],
    backend: str = "auto",
    model: str | Location | None = None,
) -> np.ndarray:
    """Embed queries with the table's model, in its precision and the table's vector length.

    They get the model's prompt for queries; see :meth:`~pipelines.tokens.start.Prompts.asking`.
    ``model`` is the folder of the table's model, if it is not in the place named by the table.

    Raises:
        InputError: There are no queries, or the folder does not hold the table's model.
    """
    if not queries:
        raise InputError("--query", "there is no query", "Pass a query, or a file with --queries")
    named = model or table.model
    if named is None:
        problem = f"{table.folder} names no model"
        raise InputError("embedding.model", problem, "Name the model that made it")
    folder = model_folder(named, table.stores)
    asking = prompts_of(folder).asking(table.prompt_name)
    options = embedding_options(folder, backend=backend, prompt_name=asking)
    # Vectors of two models cannot be compared, although their cosines can be computed.
    made_by = table.model_sha256
    if made_by is not None and not has_embedded(made_by, options.model, side_of(table.prompt_name)):
        raise InputError(
            "embedding.model",
            f"{table.folder} was made with another model than {options.model}",
            "Embed the table again, or name the model that made it",
        )
    # With another precision, about equally near rows would change places. A table in bf16 may be
    # searched on a processor without such numbers. Queries are few, so int8 would gain nothing.
    precision = "fp32" if table.precision in ("fp32", INT8) else "auto"
    embed = load_embedder(options.model, backend=options.backend, precision=precision)
    vectors = embed(queries, asking)
    return shortened(vectors, table.dimensions, normalise=options.normalise)


class _Asked(NamedTuple):
    """The input of the search of each file."""

    queries: WordQueries
    statistics: WordStatistics


def search_words(
    table: VectorTable, queries: Sequence[str], k: int, session: SparkSession | None = None
) -> Neighbours:
    """Find the k rows of highest BM25 for each query; ties go to the first row.

    Rows without a text are not searched, and a query has fewer than k rows if fewer share a word
    with it. Without a session, this process reads the files. ``documents`` of the result are
    positions in the table; ``scores`` are not cosines.

    Raises:
        InputError: The table has no texts.
        PipelineError: An executor could not search its files.
    """
    column = text_column(table)
    asked = WordQueries.of(queries)
    statistics = _statistics(table.files, asked, column, session)
    search = partial(_search_file, column=column, k=k)
    return best_of_files(table, _Asked(asked, statistics), k, search, session)


def _statistics(
    files: Sequence[VectorFile], queries: WordQueries, column: str, session: SparkSession | None
) -> WordStatistics:
    if session is None:
        return word_statistics(queries, _texts(files, column))
    tasks = deal(files, default_parallelism(session))
    with shared_value(session, queries) as shared, executor_failures("counting words"):
        work = partial(_count_task, column=column, shared=shared)
        return total(collect_from_tasks(session, tasks, work), queries)


def _count_task(
    tasks: Iterable[Sequence[VectorFile]], *, column: str, shared: Shared[WordQueries]
) -> Iterator[WordStatistics]:
    """Count the words of tasks. Runs on an executor."""
    for files in tasks:
        yield word_statistics(shared.value, _texts(files, column))


def _search_file(asked: _Asked, file: VectorFile, *, column: str, k: int) -> Neighbours:
    """Find the best rows of a file. Runs on an executor."""
    return best_by_words(asked.queries, asked.statistics, _blocks(file, column), k)


def _texts(files: Sequence[VectorFile], column: str) -> Iterator[str]:
    for file in files:
        for texts, _ in _blocks(file, column):
            yield from texts


def _blocks(file: VectorFile, column: str) -> Iterator[TextBlock]:
    """Yield the texts of a file with their positions, in batches, without nulls."""
    first = file.first
    for batch in read_rows(file.path, 0, file.rows, [column]):
        texts = as_text(batch.column(0))
        present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        yield texts.drop_null().to_pylist(), first + present
        first += batch.num_rows


@dataclass(frozen=True)
class Fused:
    """The best rows of each query by two rankings; every array has a value for each row.

    ``found`` has queries and positions, the best first, with scores of
    :func:`~pipelines.vectors.bm25.weighted_fusion`. ``cosines`` are float64; ``by_vectors`` and
    ``by_words`` are int64 ranks by cosine and by BM25, 0 below the :func:`candidates`.
    """

    found: Neighbours
    cosines: np.ndarray
    by_vectors: np.ndarray
    by_words: np.ndarray


def candidates(k: int) -> int:
    """Return how many rows of each ranking are candidates for the k best of both."""
    return max(k, FUSED_RANKS)


def fuse_with_words(
    table: VectorTable,
    queries: Sequence[str],
    vectors: np.ndarray,
    nearest: Neighbours,
    k: int,
    session: SparkSession | None = None,
) -> Fused:
    """Find the k best rows of each query by vectors and by BM25.

    ``vectors`` are of the queries, [queries, dimensions]; ``nearest`` are their :func:`candidates`
    by vectors. Without a session, this process reads the texts.

    Raises:
        InputError: The table has no texts.
        PipelineError: An executor could not search its files.
    """
    worded = search_words(table, queries, candidates(k), session)
    found = weighted_fusion(nearest, worded, k)
    by_vectors = _looked_up(found, nearest, ranks_of(nearest))
    cosines = _looked_up(found, nearest, nearest.scores)
    # Rows found only by words have no cosine yet.
    missing = by_vectors == 0
    row_vectors = vectors_at(table, found.documents[missing])
    query_vectors = unit_length(vectors)[found.queries[missing]]
    products = np.einsum("ij,ij->i", row_vectors, query_vectors).astype(float)
    cosines[missing] = np.round(products, SCORE_DECIMALS)
    return Fused(found, cosines, by_vectors, _looked_up(found, worded, ranks_of(worded)))


def _looked_up(found: Neighbours, ranking: Neighbours, values: np.ndarray) -> np.ndarray:
    """Return a ranking's value for each found row; 0 for a row outside the ranking."""
    keys = zip(ranking.queries.tolist(), ranking.documents.tolist(), strict=True)
    known = dict(zip(keys, values.tolist(), strict=True))
    wanted = zip(found.queries.tolist(), found.documents.tolist(), strict=True)
    return np.array([known.get(key, 0) for key in wanted], values.dtype)


def _hits(
    table: VectorTable, found: Neighbours, cosines: np.ndarray, fused: Fused | None = None
) -> list[Hit]:
    """Return the found rows with texts and keys, and with both ranks if two rankings were fused."""
    ranks = ranks_of(found).tolist()
    nothing: list[None] = [None] * len(ranks)
    texts, keys, by_vectors, by_words = nothing, nothing, nothing, nothing
    columns = [name for name in dict.fromkeys((table.text, table.key)) if name is not None]
    if columns:
        rows = rows_at(table, found.documents, columns)
        texts = as_text(rows.column(table.text)).to_pylist() if table.text else nothing
        keys = as_text(rows.column(table.key)).to_pylist() if table.key else nothing
    if fused is not None:
        by_vectors = [rank or None for rank in fused.by_vectors.tolist()]
        by_words = [rank or None for rank in fused.by_words.tolist()]
    queries, positions = found.queries.tolist(), found.documents.tolist()
    values = (queries, ranks, cosines.tolist(), positions, texts, keys, by_vectors, by_words)
    return [Hit(*row) for row in zip(*values, strict=True)]
