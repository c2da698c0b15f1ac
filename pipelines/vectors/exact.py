"""Exact nearest neighbours in a table of vectors, and the distribution of searches over executors.

Queries are few, and are broadcast. Each task searches its files one after the other and keeps the
best rows of each query; the driver merges the results of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from pipelines.errors import InputError
from pipelines.spark.capacity import Shared, default_parallelism, shared_value
from pipelines.spark.errors import executor_failures
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.nearest import Neighbours, merged, nearest, unit_length
from pipelines.vectors.store import VectorFile, VectorTable, read_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Asked = TypeVar("Asked")

FileSearch: TypeAlias = Callable[[Asked, VectorFile], Neighbours]
"""Returns the best rows of a file for queries; sent to executors."""


def search_table(
    table: VectorTable, queries: np.ndarray, k: int, session: SparkSession | None = None
) -> Neighbours:
    """Find the k rows of highest cosine for each query; ties go to the first row.

    ``queries`` are [queries, dimensions]; ``documents`` of the result are positions in the table.
    Without a session, this process reads the files.

    Raises:
        InputError: The queries are of another width than the table.
        PipelineError: An executor could not search its files.
    """
    search = partial(_search_file, table=table, k=k)
    return best_of_files(table, check_queries(table, queries), k, search, session)


def best_of_files(
    table: VectorTable,
    queries: Asked,
    k: int,
    search: FileSearch[Asked],
    session: SparkSession | None,
) -> Neighbours:
    """Find the k best rows of all files for each query.

    ``search`` takes ``queries`` and one file. Without a session, this process searches.

    Raises:
        PipelineError: An executor could not search.
    """
    if session is None:
        return _best(map(partial(search, queries), table.files), k)
    tasks = deal(table.files, default_parallelism(session))
    with shared_value(session, queries) as shared, executor_failures("the search"):
        work = partial(_search_task, search=search, shared=shared, k=k)
        return _best(collect_from_tasks(session, tasks, work), k)


def check_queries(table: VectorTable, queries: np.ndarray) -> np.ndarray:
    """Return the queries as rows of length 1.

    Raises:
        InputError: They are of another width than the table.
    """
    if queries.ndim != 2 or queries.shape[1] != table.dimensions:
        raise InputError(
            "embedding.dimensions",
            f"queries of {queries.shape[-1]} values do not fit vectors of {table.dimensions}",
            "Embed them with the model and the dimensions of the table",
        )
    # Cosines are then plain products.
    return unit_length(queries)


def deal(files: Sequence[VectorFile], tasks: int) -> list[list[VectorFile]]:
    """Deal the files into at most ``tasks`` lists of about as many rows each."""
    dealt: list[list[VectorFile]] = [[] for _ in range(max(1, min(tasks, len(files))))]
    rows = [0] * len(dealt)
    # Largest first: the small files then even out the lists.
    for file in sorted(files, key=lambda file: -file.rows):
        least = rows.index(min(rows))
        dealt[least].append(file)
        rows[least] += file.rows
    return dealt


def _search_task(
    tasks: Iterable[Sequence[VectorFile]],
    *,
    search: FileSearch[Asked],
    shared: Shared[Asked],
    k: int,
) -> Iterator[Neighbours]:
    """Search the files of tasks. Runs on an executor."""
    for files in tasks:
        yield _best(map(partial(search, shared.value), files), k)


def _search_file(
    queries: np.ndarray, file: VectorFile, *, table: VectorTable, k: int
) -> Neighbours:
    """Search all of a file. Runs on an executor."""
    blocks = read_blocks(table, [file])
    return _best((nearest(queries, block.vectors, block.positions, k) for block in blocks), k)


def _best(found: Iterable[Neighbours], k: int) -> Neighbours:
    return reduce(partial(merged, k=k), found, Neighbours.none())
