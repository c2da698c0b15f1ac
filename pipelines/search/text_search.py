"""Search by text: embeds queries with the model of a table, and finds the nearest rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.arrow_columns import as_text
from pipelines.embedding.options import embedding_options
from pipelines.embedding.store import VectorTable, on_this_machine, rows_at
from pipelines.embedding.vectors import shortened
from pipelines.errors import InputError
from pipelines.evaluation.nearest import Neighbours
from pipelines.files.locations import Location, location
from pipelines.files.versions import current
from pipelines.lexical.fusion import ranks_of
from pipelines.models.inference.embedder import load_embedder
from pipelines.search.by_words import text_bytes, text_column
from pipelines.search.exact import search_table
from pipelines.search.hybrid import Fused, candidates, fuse_with_words
from pipelines.search.index import build_index, has_index, search_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PROCESS_BYTES = 2**30
"""Vectors, as float32, that are searched in this process rather than by executors."""
IN_PROCESS_TEXT_BYTES = 2**28
"""Texts whose words are counted in this process: half a minute on one core."""


@dataclass(frozen=True)
class Hit:
    """A row that was found.

    Attributes:
        query: Number of the query.
        rank: 1 for the best.
        cosine: Similarity to the query.
        position: Of the row in the table.
        text: The row's.
        key: The row's, in a table that has a column of keys.
        by_vectors: Rank by cosine alone; None where it is not known, or below those that count.
        by_words: Rank by BM25 alone; the same.
    """

    query: int
    rank: int
    cosine: float
    position: int
    text: str | None
    key: str | None = None
    by_vectors: int | None = None
    by_words: int | None = None


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
    """The k nearest rows of each query, the best first.

    Args:
        table: That an embedding job wrote.
        queries: Texts.
        k: Rows of each query.
        session: Has its executors search, or build an index; without one, this process does.
        indexed: Search the table's index, which the session builds where there is none.
        hybrid: Rank by the words of the queries too, and fuse both rankings; see
            :mod:`pipelines.search.hybrid`.
        backend: What embeds the queries.
        model: The folder of the table's model; where the table says unless given.

    Raises:
        InputError: There is no query, the table's model or index is not there, the model is
            another one now, or there are no texts to find words in.
        PipelineError: An executor could not search.
    """
    if hybrid:
        text_column(table)
    vectors = embed_queries(table, queries, backend, model)
    if indexed and not has_index(table) and session is not None:
        build_index(session, table)
    if not indexed and session is None:
        # Every row is looked at, in this search and in the next one.
        table = on_this_machine(table)
    search = search_index if indexed else search_table
    nearest = search(table, vectors, candidates(k) if hybrid else k, session)
    if not hybrid:
        return _hits(table, nearest, nearest.scores)
    fused = fuse_with_words(table, queries, vectors, nearest, k, session)
    return _hits(table, fused.found, fused.cosines, fused)


def _hits(
    table: VectorTable, found: Neighbours, cosines: np.ndarray, fused: Fused | None = None
) -> list[Hit]:
    """What was found, with texts and keys; and with both ranks where there were two rankings."""
    texts, keys = _texts_and_keys(table, found.documents)
    ranks = ranks_of(found).tolist()
    nothing: list[int | None] = [None] * len(ranks)
    by_vectors = nothing if fused is None else [rank or None for rank in fused.by_vectors.tolist()]
    by_words = nothing if fused is None else [rank or None for rank in fused.by_words.tolist()]
    queries, positions = found.queries.tolist(), found.documents.tolist()
    columns = (queries, ranks, cosines.tolist(), positions, texts, keys, by_vectors, by_words)
    return [Hit(*values) for values in zip(*columns, strict=True)]


def _texts_and_keys(
    table: VectorTable, positions: np.ndarray
) -> tuple[list[str | None], list[str | None]]:
    """Of rows; None where the table has no such column."""
    columns = list(dict.fromkeys(name for name in (table.text, table.key) if name is not None))
    nothing: list[str | None] = [None] * len(positions)
    if not columns:
        return nothing, nothing
    rows = rows_at(table, positions, columns)
    texts = nothing if table.text is None else as_text(rows.column(table.text)).to_pylist()
    if table.key is None:
        return texts, nothing
    return texts, as_text(rows.column(table.key)).to_pylist()


def embed_queries(
    table: VectorTable,
    queries: Sequence[str],
    backend: str = "auto",
    model: str | Location | None = None,
) -> np.ndarray:
    """Vectors of the queries, by the table's model, in its precision and as long as the table's.

    The model's prompt for queries stands before them; see
    :meth:`~pipelines.tokens.start.Prompts.asking`.

    Args:
        table: What is to be searched.
        queries: Texts.
        backend: What embeds them.
        model: The folder of the table's model; where the table says unless given.

    Raises:
        InputError: There are none, or the model that made the table is not in the folder.
    """
    if not queries:
        raise InputError("--query", "there is none", "ask something, or name a file of --queries")
    named = model or table.model
    if named is None:
        raise InputError(
            "embedding.model", f"{table.folder} names no model", "name the one that made it"
        )
    options = embedding_options(current(location(named, table.stores)), backend=backend)
    # Vectors of two models cannot be compared, although their cosines can be computed.
    if table.model_sha256 not in (None, options.model_sha256):
        raise InputError(
            "embedding.model",
            f"{table.folder} was made with another model than {options.model}",
            "embed the table again, or name the model that made it",
        )
    # Otherwise rows that are about as near would change places. A table in bf16 may be searched
    # where the processor has no such numbers.
    precision = "fp32" if table.precision == "fp32" else "auto"
    embed = load_embedder(options.model, backend=options.backend, precision=precision)
    vectors = embed(queries, embed.prompts.asking(table.prompt_name))
    return shortened(vectors, table.dimensions, normalise=options.normalise)


def read_queries(path: str | Path) -> list[str]:
    """The lines of a file that are not blank.

    Raises:
        InputError: It cannot be read.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "--queries", f"{path} cannot be read ({error})", "name a text file"
        ) from None
    return [line.strip() for line in lines if line.strip()]


def fits_in_process(table: VectorTable, *, hybrid: bool = False) -> bool:
    """Whether a search needs no executors; reads footers where the words of texts count.

    Raises:
        InputError: They do, and the table has no texts.
    """
    if hybrid and text_bytes(table) > IN_PROCESS_TEXT_BYTES:
        return False
    return 4 * table.rows * table.dimensions <= IN_PROCESS_BYTES
