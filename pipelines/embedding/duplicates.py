"""Texts that mean the same: pairs of vectors above a cosine, and groups of such pairs.

All pairs are compared, block by block, so the work grows with the square of the table: for
millions of rows, search the neighbours of each in an index instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.embedding.store import Block, VectorFile, VectorTable, read_blocks
from pipelines.errors import InputError
from pipelines.evaluation.nearest import SCORE_DECIMALS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAIRS_DDL = "left long, right long, cosine double"
_ROWS_AT_ONCE = 2048


def near_duplicates(session: SparkSession, table: VectorTable, threshold: float) -> DataFrame:
    """The pairs of rows of at least this cosine, each once; lazy.

    Args:
        session: Its executors compare.
        table: The vectors.
        threshold: Above 0, at most 1; compared to six decimals.

    Returns:
        ``left`` and ``right`` (positions, left before right) and ``cosine``.

    Raises:
        InputError: The threshold is no such cosine.
    """
    check_threshold(threshold)
    pairs = list(combinations_with_replacement(table.files, 2))
    numbers = session.range(0, len(pairs), 1, len(pairs))
    work = partial(_compare_numbers, pairs=pairs, table=table, threshold=threshold)
    return numbers.mapInArrow(work, PAIRS_DDL)


def check_threshold(threshold: float) -> None:
    """Makes sure that a threshold tells apart what is alike.

    Raises:
        InputError: It does not.
    """
    if not 0 < threshold <= 1:
        raise InputError("threshold", f"{threshold} is no similarity", "above 0 and at most 1")


def _compare_numbers(
    batches: Iterable[pa.RecordBatch],
    *,
    pairs: Sequence[tuple[VectorFile, VectorFile]],
    table: VectorTable,
    threshold: float,
) -> Iterator[pa.RecordBatch]:
    """Compares the pairs of files whose numbers are in `id`. Runs on an executor."""
    for number in (number for batch in batches for number in batch.column("id").to_pylist()):
        left, right = pairs[number]
        for first in read_blocks(table, [left]):
            for second in read_blocks(table, [right]):
                yield from alike(first, second, threshold)


def alike(first: Block, second: Block, threshold: float) -> Iterator[pa.RecordBatch]:
    """Pairs of a row of each block, the left before the right, in batches."""
    for start in range(0, len(first.positions), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        cosines = np.round((first.vectors[rows] @ second.vectors.T).astype(float), SCORE_DECIMALS)
        left, right = np.nonzero(cosines >= threshold)
        positions = first.positions[rows][left], second.positions[right]
        once = positions[0] < positions[1]
        arrays = [positions[0][once], positions[1][once], cosines[left, right][once]]
        if len(arrays[0]):
            yield pa.RecordBatch.from_arrays(
                [pa.array(array) for array in arrays], names=["left", "right", "cosine"]
            )


def duplicate_groups(pairs: DataFrame) -> dict[int, list[int]]:
    """Rows that hang together by pairs, however many lie between; collects the pairs.

    Args:
        pairs: From :func:`near_duplicates`.

    Returns:
        The positions of each group, ascending, by its first one, which is the one to keep.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.array(pairs.select("left", "right").collect(), np.int64).reshape(-1, 2)
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
