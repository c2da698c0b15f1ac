"""Search by text: embeds queries with the model of a table, and finds the nearest rows in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipelines.embedding.options import embedding_options
from pipelines.embedding.store import VectorTable, on_this_machine, rows_at
from pipelines.embedding.vectors import shortened
from pipelines.errors import InputError
from pipelines.files.locations import Location, location
from pipelines.files.versions import current
from pipelines.models.inference.embedder import load_embedder
from pipelines.search.exact import search_table
from pipelines.search.index import build_index, has_index, search_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_PROCESS_BYTES = 2**30
"""Vectors, as float32, that are searched in this process rather than by executors."""


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
    """

    query: int
    rank: int
    cosine: float
    position: int
    text: str | None
    key: str | None = None


def find_texts(
    table: VectorTable,
    queries: Sequence[str],
    k: int,
    *,
    session: SparkSession | None = None,
    indexed: bool = False,
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
        backend: What embeds the queries.
        model: The folder of the table's model; where the table says unless given.

    Raises:
        InputError: There is no query, the table's model or index is not there, or the model is
            another one now.
        PipelineError: An executor could not search.
    """
    vectors = embed_queries(table, queries, backend, model)
    if indexed:
        if not has_index(table) and session is not None:
            build_index(session, table)
        found = search_index(table, vectors, k, session)
    else:
        # Every row is looked at, in this search and in the next one.
        table = on_this_machine(table) if session is None else table
        found = search_table(table, vectors, k, session)
    texts, keys = _texts_and_keys(table, found.documents)
    starts = np.searchsorted(found.queries, found.queries)
    return [
        Hit(int(query), place - int(start) + 1, float(score), int(position), text, key)
        for place, (query, start, score, position, text, key) in enumerate(
            zip(found.queries, starts, found.scores, found.documents, texts, keys, strict=True)
        )
    ]


def _texts_and_keys(
    table: VectorTable, positions: np.ndarray
) -> tuple[list[str | None], list[str | None]]:
    """Of rows; None where the table has no such column."""
    columns = list(dict.fromkeys(name for name in (table.text, table.key) if name is not None))
    nothing: list[str | None] = [None] * len(positions)
    if not columns:
        return nothing, nothing
    rows = rows_at(table, positions, columns)
    texts = nothing if table.text is None else rows.column(table.text).to_pylist()
    if table.key is None:
        return texts, nothing
    return texts, [str(key) for key in rows.column(table.key).to_pylist()]


def embed_queries(
    table: VectorTable,
    queries: Sequence[str],
    backend: str = "auto",
    model: str | Location | None = None,
) -> np.ndarray:
    """Vectors of the queries, by the table's model and as long as the table's.

    The model's prompt for queries stands before them; see
    :meth:`~pipelines.tokens.prompts.Prompts.asking`.

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
    embed = load_embedder(options.model, backend=options.backend, precision="auto")
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


def fits_in_process(table: VectorTable) -> bool:
    """Whether a search needs no executors."""
    return 4 * table.rows * table.dimensions <= IN_PROCESS_BYTES
