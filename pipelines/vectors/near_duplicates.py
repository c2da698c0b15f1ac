"""Near-duplicates: pairs of rows with at least a given cosine, and groups of pairs.

All pairs are compared, block by block, so the work grows with the square of the table. For millions
of rows, search the neighbours of each in an index instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.errors import InputError
from pipelines.spark.errors import executor_failures
from pipelines.vectors.nearest import SCORE_DECIMALS
from pipelines.vectors.store import Block, VectorTable, read_blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAIRS_DDL = "left long, right long, cosine double"
TILE_ROWS = 2048
"""Rows of either side compared at once: 16 MiB of cosines."""
MAX_TASKS = 4096
"""Most tasks of a comparison, whatever the number of files."""


def near_duplicates(session: SparkSession, table: VectorTable, threshold: float) -> DataFrame:
    """Return the pairs of rows of at least this cosine, each once; lazy.

    The columns are ``left`` and ``right`` (positions, left before right) and ``cosine``. The
    threshold is above 0 and at most 1; cosines are rounded to six decimals. A task holds two blocks
    at a time.

    Raises:
        InputError: The threshold is no such cosine.
    """
    if not 0 < threshold <= 1:
        raise InputError(
            "threshold", f"{threshold} is not a similarity", "Choose one above 0 and at most 1"
        )
    pairs = pairs_of(len(table.files))
    # Tasks get numbers, not files: pairs grow with the square of the files.
    numbers = session.range(0, pairs, 1, min(pairs, MAX_TASKS))
    work = partial(_compare_numbers, table=table, threshold=threshold)
    return numbers.mapInArrow(work, PAIRS_DDL)


def pairs_of(files: int) -> int:
    """Return the number of pairs of files, including those of a file with itself."""
    return files * (files + 1) // 2


def pair_of(number: int) -> tuple[int, int]:
    """Return a pair of files by its number, the earlier first: (0, 0), (0, 1), (1, 1), (0, 2)."""
    right = (isqrt(8 * number + 1) - 1) // 2
    return number - pairs_of(right), right


def _compare_numbers(
    batches: Iterable[pa.RecordBatch], *, table: VectorTable, threshold: float
) -> Iterator[pa.RecordBatch]:
    """Compare the pairs of files with the numbers in `id`. Runs on an executor."""
    for number in (number for batch in batches for number in batch.column("id").to_pylist()):
        left, right = pair_of(number)
        for first in read_blocks(table, [table.files[left]]):
            for second in read_blocks(table, [table.files[right]]):
                yield from alike(first, second, threshold)


def alike(
    first: Block, second: Block, threshold: float, tile_rows: int = TILE_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield pairs of rows, the left from ``first`` and the right from ``second``, in batches.

    Both may be the same block; left rows are before right ones. ``threshold`` is the least cosine;
    ``tile_rows`` of each side are compared at a time.
    """
    lefts, rights = (range(0, len(block.positions), tile_rows) for block in (first, second))
    for left_start, right_start in product(lefts, rights):
        rows = slice(left_start, left_start + tile_rows)
        columns = slice(right_start, right_start + tile_rows)
        before, behind = first.positions[rows], second.positions[columns]
        # Positions ascend, so no pair of this tile has its left row first.
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
    """Collect groups of rows connected by pairs, directly or through other rows.

    The pairs are from :func:`near_duplicates`. Return the ascending positions of each group by its
    first one, the row to keep.

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
