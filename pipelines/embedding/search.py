"""Exact nearest neighbours in a table of vectors.

Queries are few, and go to every task. Tasks read the files in blocks and keep the best of each
query; the driver merges those. :mod:`pipelines.embedding.index` searches without looking at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from pipelines.embedding.store import VectorFile, VectorTable, read_blocks
from pipelines.errors import InputError
from pipelines.evaluation.embedder import unit_length
from pipelines.evaluation.nearest import Neighbours, merged, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def search_table(
    table: VectorTable, queries: np.ndarray, k: int, session: SparkSession | None = None
) -> Neighbours:
    """The k rows of highest cosine for each query; of equal ones the first.

    Args:
        table: What is searched.
        queries: [queries, dimensions].
        k: Neighbours of a query.
        session: Has its executors read the files; without one, this process does.

    Returns:
        ``documents`` are positions in the table.

    Raises:
        InputError: The queries are of another width than the table.
    """
    unit = check_queries(table, queries)
    if session is None:
        return _search_files(table.files, table=table, queries=unit, k=k)
    context = session.sparkContext
    shared = context.broadcast(unit)
    try:
        tasks = deal(table.files, context.defaultParallelism)
        work = partial(_search_task, table=table, shared=shared, k=k)
        found = context.parallelize(tasks, len(tasks)).mapPartitions(work).collect()
    finally:
        shared.destroy()
    return reduce(partial(merged, k=k), found, Neighbours.none())


def check_queries(table: VectorTable, queries: np.ndarray) -> np.ndarray:
    """The queries as rows of length 1.

    Raises:
        InputError: They are of another width than the table.
    """
    if queries.ndim != 2 or queries.shape[1] != table.dimensions:
        raise InputError(
            "embedding.dimensions",
            f"queries of {queries.shape[-1]} values do not fit vectors of {table.dimensions}",
            "embed them with the model and the dimensions of the table",
        )
    return unit_length(queries)


def deal(files: Sequence[VectorFile], tasks: int) -> list[list[VectorFile]]:
    """The files in at most so many lists of about as many rows each."""
    dealt: list[list[VectorFile]] = [[] for _ in range(max(1, min(tasks, len(files))))]
    rows = [0] * len(dealt)
    for file in sorted(files, key=lambda file: -file.rows):
        least = rows.index(min(rows))
        dealt[least].append(file)
        rows[least] += file.rows
    return dealt


def _search_task(
    tasks: Iterable[Sequence[VectorFile]], *, table: VectorTable, shared: object, k: int
) -> Iterator[Neighbours]:
    """Runs on an executor."""
    queries = shared.value  # type: ignore[attr-defined]
    for files in tasks:
        yield _search_files(files, table=table, queries=queries, k=k)


def _search_files(
    files: Sequence[VectorFile], *, table: VectorTable, queries: np.ndarray, k: int
) -> Neighbours:
    found = (
        nearest(queries, block.vectors, block.positions, k) for block in read_blocks(table, files)
    )
    return reduce(partial(merged, k=k), found, Neighbours.none())
