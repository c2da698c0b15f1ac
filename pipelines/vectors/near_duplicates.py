"""Near-duplicates: pairs of rows whose vectors have at least some cosine, and groups of pairs.

All pairs are compared, block by block, so the work grows with the square of the table: for
millions of rows, search the neighbours of each in an index instead.

Exact nearest neighbours in a table of vectors, and how a search is spread over executors.

Queries are few, and are broadcast to all tasks. Each task searches its files one after the other
and keeps the best rows of each query; the driver merges those. :mod:`pipelines.vectors.index`
searches a file without looking at all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import product
from math import isqrt
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError
from pipelines.spark.capacity import Shared, default_parallelism, shared_value
from pipelines.spark.errors import executor_failures
from pipelines.spark.tasks import collect_from_tasks
from pipelines.vectors.nearest import SCORE_DECIMALS, Neighbours, merged, nearest, unit_length
from pipelines.vectors.store import Block, VectorFile, VectorTable, read_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Asked = TypeVar("Asked")

FileSearch: TypeAlias = Callable[[Asked, VectorFile], Neighbours]
"""Gives the best rows of a file for queries; is sent to executors."""


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
    """The k best rows of all files for each query.

    Args:
        table: Has the files.
        queries: As the search takes them.
        k: Neighbours of a query.
        search: Of one file.
        session: Has its executors search; without one, this process does.

    Raises:
        PipelineError: An executor could not.
    """
    if session is None:
        return _best(map(partial(search, queries), table.files), k)
    tasks = deal(table.files, default_parallelism(session))
    with shared_value(session, queries) as shared, executor_failures("the search"):
        work = partial(_search_task, search=search, shared=shared, k=k)
        return _best(collect_from_tasks(session, tasks, work), k)


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
    tasks: Iterable[Sequence[VectorFile]],
    *,
    search: FileSearch[Asked],
    shared: Shared[Asked],
    k: int,
) -> Iterator[Neighbours]:
    """Runs on an executor."""
    for files in tasks:
        yield _best(map(partial(search, shared.value), files), k)


def _search_file(
    queries: np.ndarray, file: VectorFile, *, table: VectorTable, k: int
) -> Neighbours:
    """Runs on an executor."""
    blocks = read_blocks(table, [file])
    return _best((nearest(queries, block.vectors, block.positions, k) for block in blocks), k)


def _best(found: Iterable[Neighbours], k: int) -> Neighbours:
    return reduce(partial(merged, k=k), found, Neighbours.none())


PAIRS_DDL = "left long, right long, cosine double"
TILE_ROWS = 2048
"""Rows of either side that are compared at once: 16 MiB of cosines."""
MAX_TASKS = 4096
"""Of one comparison, whatever the number of files."""


def near_duplicates(session: SparkSession, table: VectorTable, threshold: float) -> DataFrame:
    """The pairs of rows of at least this cosine, each once; lazy.

    Args:
        session: Its executors compare; a task holds two blocks of the table at a time.
        table: The vectors.
        threshold: Above 0, at most 1; compared to six decimals.

    Returns:
        ``left`` and ``right`` (positions, left before right) and ``cosine``.

    Raises:
        InputError: The threshold is no such cosine.
    """
    check_threshold(threshold)
    pairs = pairs_of(len(table.files))
    numbers = session.range(0, pairs, 1, min(pairs, MAX_TASKS))
    work = partial(_compare_numbers, table=table, threshold=threshold)
    return numbers.mapInArrow(work, PAIRS_DDL)


def check_threshold(threshold: float) -> None:
    """Makes sure that a threshold is a cosine above 0.

    Raises:
        InputError: It is not.
    """
    if not 0 < threshold <= 1:
        raise InputError("threshold", f"{threshold} is no similarity", "above 0 and at most 1")


def pairs_of(files: int) -> int:
    """How many pairs of files there are, those of a file with itself included."""
    return files * (files + 1) // 2


def pair_of(number: int) -> tuple[int, int]:
    """The pair of files with a number, the earlier file first: (0, 0), (0, 1), (1, 1), (0, 2)."""
    right = (isqrt(8 * number + 1) - 1) // 2
    return number - pairs_of(right), right


def _compare_numbers(
    batches: Iterable[pa.RecordBatch], *, table: VectorTable, threshold: float
) -> Iterator[pa.RecordBatch]:
    """Compares the pairs of files whose numbers are in `id`. Runs on an executor."""
    for number in (number for batch in batches for number in batch.column("id").to_pylist()):
        left, right = pair_of(number)
        for first in read_blocks(table, [table.files[left]]):
            for second in read_blocks(table, [table.files[right]]):
                yield from alike(first, second, threshold)


def alike(
    first: Block, second: Block, threshold: float, tile_rows: int = TILE_ROWS
) -> Iterator[pa.RecordBatch]:
    """Pairs of a row of each block, the left before the right, in batches.

    Args:
        first: Has the left rows.
        second: Has the right rows; may be the same.
        threshold: The least cosine.
        tile_rows: Of each side, what is compared at a time.
    """
    lefts, rights = (range(0, len(block.positions), tile_rows) for block in (first, second))
    for start, other in product(lefts, rights):
        rows, columns = slice(start, start + tile_rows), slice(other, other + tile_rows)
        before, behind = first.positions[rows], second.positions[columns]
        if before[0] >= behind[-1]:
            continue
        cosines = first.vectors[rows] @ second.vectors[columns].T
        # Rounding moves a cosine by less than one of its decimals, so few have to be rounded.
        left, right = np.nonzero(cosines >= threshold - 10.0**-SCORE_DECIMALS)
        rounded = np.round(cosines[left, right].astype(float), SCORE_DECIMALS)
        kept = (rounded >= threshold) & (before[left] < behind[right])
        if kept.any():
            arrays = before[left[kept]], behind[right[kept]], rounded[kept]
            yield pa.RecordBatch.from_arrays(
                [pa.array(array) for array in arrays], names=["left", "right", "cosine"]
            )


def duplicate_groups(pairs: DataFrame) -> dict[int, list[int]]:
    """Groups of rows that pairs connect, directly or through other rows; collects the pairs.

    Args:
        pairs: From :func:`near_duplicates`.

    Returns:
        The positions of each group, ascending, by its first one, which is the one to keep.

    Raises:
        PipelineError: An executor could not compare its rows.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends_of_pairs = pairs.select("left", "right")
    with executor_failures("the search for near-duplicates"):
        edges = np.array(ends_of_pairs.collect(), np.int64).reshape(-1, 2)
    if not len(edges):
        return {}
    positions, ends = np.unique(edges, return_inverse=True)
    left, right = ends.reshape(edges.shape).T
    size = (len(positions), len(positions))
    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=size)
    _, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    groups = [group.tolist() for group in np.split(positions[order], starts[1:])]
    return {group[0]: group for group in groups}
