"""How documents near anchors are found: by comparing with all of them, or by an index.

Adding a search takes a :class:`Search` and a line in :data:`pipelines.catalog.SEARCHES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pipelines.embedding.store import VectorTable, read_blocks
from pipelines.evaluation.nearest import Neighbours
from pipelines.libraries import check_installed
from pipelines.mining.anchors import Anchors, is_in
from pipelines.mining.selection import Selection, some_of
from pipelines.search.index import build_index, has_index, search_index

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK_PAIRS = 512
BLOCK_DOCUMENTS = 4096
"""That are compared at once: 8 MiB of scores. The same whatever the number of tasks, since the
last bits of a product depend on the shape of the matrices."""
FIRST_DOCUMENTS = 64
"""Before any is known, all documents are candidates; so a few are compared first."""
MORE_OF_INDEX = 2
"""Documents that an index is asked for, for each one that is wanted: filters drop some."""
LEAST_OF_INDEX = 32
"""The same beside those of a pair that are few."""
MOST_OF_INDEX = 2048
"""The same of pairs for which filters have dropped too many."""
_ASKED_AGAIN = 8
"""Times as many documents are asked for again."""
_FOUND_AT_ONCE = 2**20
"""Documents of all pairs that an index is asked for at a time."""

GetOn: TypeAlias = Callable[[], None]
"""Is called now and then, as a sign that the task gets on."""


@dataclass(frozen=True)
class Search:
    """How documents are found.

    Attributes:
        find: Fills a selection. Runs on an executor; reads the table, which is in files of its own.
        parts_of_file: How many parts of work make a file of documents.
        check: Called before anything begins; raises InputError if the search cannot be made.
        prepare: Called on the driver when all documents have vectors.
    """

    find: Callable[[Selection, VectorTable, GetOn], None]
    parts_of_file: int = 1
    check: Callable[[], None] = lambda: None
    prepare: Callable[[SparkSession, VectorTable], object] = lambda session, table: None


def _compare_all(selection: Selection, table: VectorTable, get_on: GetOn) -> None:
    """Compares every anchor with every document, block by block. Runs on an executor."""
    anchors = selection.anchors.vectors
    seen = 0
    for block in read_blocks(table, table.files):
        start = 0
        while start < len(block.positions):
            # Those of the first blocks tell how near a document has to be in the next ones.
            width = int(np.clip(seen, FIRST_DOCUMENTS, BLOCK_DOCUMENTS))
            some = slice(start, start + width)
            vectors, positions = block.vectors[some], block.positions[some]
            for first in range(0, len(anchors), BLOCK_PAIRS):
                scores = anchors[first : first + BLOCK_PAIRS] @ vectors.T
                selection.offer(first, positions, scores)
            seen += len(positions)
            start += width
        get_on()


def _ask_index(selection: Selection, table: VectorTable, get_on: GetOn) -> None:
    """Asks the index of the documents for those near each anchor. Runs on an executor.

    Pairs for which filters drop nearly all that was found are asked for again, with more.
    """
    anchors = selection.anchors
    own = int(np.bincount(anchors.numbers).max(initial=0))
    k = MORE_OF_INDEX * selection.k + LEAST_OF_INDEX + own
    rows, seen = np.arange(len(anchors)), np.empty(0, np.int64)
    most = min(max(k, MOST_OF_INDEX), anchors.documents)
    while len(rows):
        keys, lowest = [], np.full(len(anchors), np.inf)
        size = max(1, _FOUND_AT_ONCE // k)
        for start in range(0, len(rows), size):
            found = _found_by_index(anchors, rows[start : start + size], table, k)
            keys.append(found.queries * anchors.documents + found.documents)
            selection.add(some_of(found, ~is_in(keys[-1], seen)))
            np.minimum.at(lowest, found.queries, found.scores)
            get_on()
        if k >= most:
            return
        k = min(_ASKED_AGAIN * k, most)
        seen = np.union1d(seen, np.concatenate(keys))
        rows = rows[selection.are_short()[rows] & (lowest[rows] >= selection.floor)]


def _found_by_index(anchors: Anchors, rows: np.ndarray, table: VectorTable, k: int) -> Neighbours:
    found = search_index(table, anchors.vectors[rows], k)
    return Neighbours(rows[found.queries], found.documents, found.scores)


def _build(session: SparkSession, table: VectorTable) -> None:
    if not has_index(table):
        build_index(session, table)


EXACT = Search(_compare_all)
INDEX = Search(
    _ask_index,
    parts_of_file=16,
    check=partial(check_installed, "mining.search", "usearch"),
    prepare=_build,
)
