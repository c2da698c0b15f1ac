"""The choice of negatives: documents near an anchor, searched and filtered. Used on executors.

A search compares the anchor with all documents, or asks an index; filters then drop documents
unsuitable as negatives. Randomness depends only on a hash of the seed, the texts of the pair and
the document: never on the number of tasks, nor on the order of the pairs. Source of the hash: the
finaliser of SplitMix64, Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014.

Adding a search takes a :class:`Search` and a line in :data:`pipelines.catalog.SEARCHES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pipelines.libraries import check_installed
from pipelines.settings import MiningSettings
from pipelines.vectors.index import build_index, has_index, search_index
from pipelines.vectors.mining_texts import Anchors, is_in
from pipelines.vectors.nearest import SCORE_DECIMALS, Neighbours, joined, merged, ranks
from pipelines.vectors.store import VectorTable, read_blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


WAITING = 2**20
"""Most found documents before a sort; 24 bytes each."""
_WAITING_OF_ONE = 2
"""The same limit, if lower, for each document to keep: an early sort raises the bounds early."""
_ROUNDING = 2 * 10.0**-SCORE_DECIMALS


class Nearest:
    """The k nearest of all added documents, for each of some pairs; none below ``floor``.

    Added documents wait for a common sort.
    """

    def __init__(self, pairs: int, k: int, floor: float = -np.inf) -> None:
        self._k, self._floor = k, floor
        self._found = Neighbours.none()
        self._waiting: list[Neighbours] = []
        self._count = 0
        self.bounds = np.full(pairs, floor)
        """Lowest score, as far as known, of a document among the nearest of a pair."""

    def add(self, found: Neighbours) -> None:
        """Add documents; drop those too far to be among the nearest."""
        near = found.where(found.scores >= self.bounds[found.queries])
        self._waiting.append(near)
        self._count += len(near.queries)
        if self._count >= min(WAITING, _WAITING_OF_ONE * self._k * len(self.bounds)):
            self.result()

    def result(self) -> Neighbours:
        """Return the nearest of each pair, the best first; ties go to the first document."""
        if self._waiting:
            self._found = merged(self._found, joined(self._waiting), self._k)
            self._waiting, self._count = [], 0
            counts = np.bincount(self._found.queries, minlength=len(self.bounds))
            last = np.cumsum(counts) - 1
            is_full = counts == self._k
            self.bounds[is_full] = self._found.scores[last[is_full]]
        return self._found


class Selection:
    """The documents found for the pairs of a part, and those dropped by filters.

    ``settings`` choose the filters. ``k`` documents are wanted of each pair, none below ``floor``.
    """

    def __init__(self, anchors: Anchors, settings: MiningSettings, k: int) -> None:
        self.anchors, self.k = anchors, k
        self.floor = -np.inf if settings.min_score is None else settings.min_score
        self._filters = own_filters(anchors, settings) | score_filters(anchors, settings)
        self._nearest = Nearest(len(anchors), k, self.floor)
        self._dropped = {reason: Nearest(len(anchors), k, self.floor) for reason in self._filters}

    def offer(self, first: int, documents: np.ndarray, scores: np.ndarray) -> None:
        """Add a block of scores, fp32 [rows, columns].

        ``first`` is the pair of the first row; ``documents`` are those of the columns, int64.
        """
        # Scores are rounded only later, so those just below a bound may still reach it.
        bounds = self._nearest.bounds[first : first + len(scores)] - _ROUNDING
        # NaN is not above any bound.
        rows, columns = np.nonzero(scores >= bounds[:, None].astype(np.float32))
        if len(rows):
            self.add(Neighbours(rows + first, documents[columns], scores[rows, columns]))

    def add(self, found: Neighbours) -> None:
        """Add found documents, in any order."""
        scores = np.round(found.scores.astype(float), SCORE_DECIMALS)
        found = Neighbours(found.queries, found.documents, scores)
        for reason, is_dropped in self._filters.items():
            drops = is_dropped(found)
            if drops.any():
                self._dropped[reason].add(found.where(drops))
                found = found.where(~drops)
        self._nearest.add(found)

    def result(self) -> Neighbours:
        """Return the nearest documents of each pair after all filters, the best first."""
        return self._nearest.result()

    def are_short(self) -> np.ndarray:
        """Return whether a pair has found fewer documents than wanted, bool [pairs]."""
        counts = np.bincount(self.result().queries, minlength=len(self.anchors))
        short: np.ndarray = counts < self.k
        return short

    def dropped(self) -> Mapping[str, int]:
        """Count, by reason, dropped documents nearer than the last one kept of their pair.

        Each pair and reason counts at most ``k``.
        """
        self.result()
        bounds = self._nearest.bounds
        found = {reason: nearest.result() for reason, nearest in self._dropped.items()}
        return {
            reason: int((dropped.scores >= bounds[dropped.queries]).sum())
            for reason, dropped in found.items()
        }


Filter: TypeAlias = Callable[[Neighbours], np.ndarray]
"""Marks found documents unsuitable as negatives: bool, one for each."""


def own_filters(anchors: Anchors, settings: MiningSettings) -> dict[str, Filter]:
    """Return filters of the anchor's own documents, to drop from random draws too.

    They run in this order; the names are the reasons in the figures.
    """
    filters: dict[str, Filter] = {
        "known positive": lambda found: anchors.are_positives(found.queries, found.documents),
        "same text": lambda found: anchors.own_documents[found.queries] == found.documents,
    }
    if not settings.same_group:
        filters["same group"] = lambda found: anchors.are_of_group(found.queries, found.documents)
    return filters


def score_filters(anchors: Anchors, settings: MiningSettings) -> dict[str, Filter]:
    """Return filters of too near documents, in their order."""
    filters: dict[str, Filter] = {}
    if settings.max_score is not None:
        filters["above max_score"] = lambda found: found.scores > settings.max_score
    if (settings.relative_margin, settings.absolute_margin) != (None, None):
        scores = anchors.positive_scores
        if settings.margin_positive == "lowest":
            scores = anchors.lowest_positive_scores()
        limits = score_limits(scores, settings)
        filters["too near the positive"] = lambda found: found.scores > limits[found.queries]
    return filters


def score_limits(positive_scores: np.ndarray, settings: MiningSettings) -> np.ndarray:
    """Return the highest score of a negative of each pair, given the scores of its positive.

    Documents about as near as the positive are often unlabelled positives. Source: Moreira et al.,
    "NV-Retriever: Improving text embedding models with effective hard-negative mining", 2024,
    arXiv:2407.15831 (`TopK-PercPos` and `TopK-MarginPos`). A share of a positive score below 0 is
    also subtracted, so a limit is never above the score.

    ``positive_scores`` [pairs] are of the positive in `mining.margin_positive`.
    """
    limits = np.full(len(positive_scores), np.inf)
    if settings.relative_margin is not None:
        limits = positive_scores - settings.relative_margin * np.abs(positive_scores)
    if settings.absolute_margin is not None:
        limits = np.minimum(limits, positive_scores - settings.absolute_margin)
    return limits


BLOCK_PAIRS = 512
BLOCK_DOCUMENTS = 4096
"""Documents compared at once: 8 MiB of scores. Independent of the number of tasks, since the last
bits of a product depend on the shape of the matrices."""
FIRST_DOCUMENTS = 64
"""Documents compared first: while no bound is known, all documents are candidates."""
MORE_OF_INDEX = 2
"""Documents to ask an index for, per wanted one: filters drop some."""
LEAST_OF_INDEX = 32
"""Further documents to ask an index for, since a pair may want few."""
MOST_OF_INDEX = 2048
"""Most documents to ask an index for, for pairs with few documents after the filters."""
_ASKED_AGAIN = 8
"""Factor between the documents of a request and of the repeated one."""
_FOUND_AT_ONCE = 2**20
"""Documents of all pairs to ask an index for at a time."""

GetOn: TypeAlias = Callable[[], None]
"""Called now and then, as a sign that the task makes progress."""


@dataclass(frozen=True)
class Search:
    """A way to find documents.

    Attributes:
        find: Fills a selection. Runs on an executor; reads the files of the table.
        parts_of_file: Parts of work for each file of documents.
        check: Called before all work; raises InputError if the search is impossible.
        prepare: Called on the driver when all documents have vectors.
        in_place: Whether to read the table in its place, rather than a copy on this machine.
    """

    find: Callable[[Selection, VectorTable, GetOn], None]
    parts_of_file: int = 1
    check: Callable[[], None] = lambda: None
    prepare: Callable[[SparkSession, VectorTable], object] = lambda session, table: None
    in_place: bool = False


def _compare_all(selection: Selection, table: VectorTable, get_on: GetOn) -> None:
    """Compare every anchor with every document, block by block. Runs on an executor."""
    anchors = selection.anchors.vectors
    seen = 0
    for block in read_blocks(table, table.files):
        start = 0
        while start < len(block.positions):
            # The first, small blocks give bounds, which spare most candidates of the next ones.
            width = int(np.clip(seen, FIRST_DOCUMENTS, BLOCK_DOCUMENTS))
            columns = slice(start, start + width)
            vectors, positions = block.vectors[columns], block.positions[columns]
            for first in range(0, len(anchors), BLOCK_PAIRS):
                scores = anchors[first : first + BLOCK_PAIRS] @ vectors.T
                selection.offer(first, positions, scores)
            seen += len(positions)
            start += width
        get_on()


def _ask_index(selection: Selection, table: VectorTable, get_on: GetOn) -> None:
    """Search the index of the documents for each anchor. Runs on an executor.

    Pairs left with few documents by the filters are searched again, for more.
    """
    anchors = selection.anchors
    # Filters drop the known positives, at most as many as the pairs of one anchor.
    most_positives = int(np.bincount(anchors.numbers).max(initial=0))
    k = MORE_OF_INDEX * selection.k + LEAST_OF_INDEX + most_positives
    rows, seen = np.arange(len(anchors)), np.empty(0, np.int64)
    most = min(max(k, MOST_OF_INDEX), anchors.documents)
    while len(rows):
        keys, lowest = [], np.full(len(anchors), np.inf)
        size = max(1, _FOUND_AT_ONCE // k)
        for start in range(0, len(rows), size):
            asked = rows[start : start + size]
            near = search_index(table, anchors.vectors[asked], k)
            found = Neighbours(asked[near.queries], near.documents, near.scores)
            keys.append(found.queries * anchors.documents + found.documents)
            selection.add(found.where(~is_in(keys[-1], seen)))
            np.minimum.at(lowest, found.queries, found.scores)
            get_on()
        if k >= most:
            return
        k = min(_ASKED_AGAIN * k, most)
        seen = np.union1d(seen, np.concatenate(keys))
        # Below the floor there is nothing more to find.
        rows = rows[selection.are_short()[rows] & (lowest[rows] >= selection.floor)]


def _build(session: SparkSession, table: VectorTable) -> None:
    if not has_index(table):
        build_index(session, table)


EXACT = Search(_compare_all)
INDEX = Search(
    _ask_index,
    in_place=True,
    parts_of_file=16,
    check=partial(check_installed, "mining.search", "usearch"),
    prepare=_build,
)


NONE = -1
"""Stands for a missing document."""
DRAWS = 64
"""Most random documents tried for each wanted one."""
_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Negatives:
    """The negatives of pairs, the nearest first, then those drawn at random.

    ``documents`` are int64 [pairs, negatives], positions, :data:`NONE` for missing ones. ``scores``
    [pairs, negatives] are NaN if not yet known.
    """

    documents: np.ndarray
    scores: np.ndarray

    @property
    def is_whole(self) -> np.ndarray:
        """Whether a pair has all of its negatives, bool [pairs]."""
        is_whole: np.ndarray = (self.documents != NONE).all(axis=1)
        return is_whole


def wanted(settings: MiningSettings) -> int:
    """Return how many nearest documents of each pair to find."""
    window = settings.negatives if settings.choose == "nearest" else settings.window
    return settings.skip + window


def choose(found: Neighbours, anchors: Anchors, settings: MiningSettings) -> Negatives:
    """Choose the negatives of each pair from the filtered documents, given best first."""
    places = ranks(found.queries)
    kept = found.where((places >= settings.skip) & (places < wanted(settings)))
    rows, documents, scores = kept.queries, kept.documents, kept.scores
    if settings.choose == "random":
        draws = _mixed(anchors.ids[rows], documents, settings.seed)
        by_draw = np.lexsort((documents, draws, rows))
        chosen = np.sort(by_draw[ranks(rows[by_draw]) < settings.negatives])
        rows, documents, scores = rows[chosen], documents[chosen], scores[chosen]
    size = (len(anchors), settings.negatives)
    negatives = Negatives(np.full(size, NONE, np.int64), np.full(size, np.nan))
    places = ranks(rows)
    negatives.documents[rows, places] = documents
    negatives.scores[rows, places] = scores
    return negatives


def fill(negatives: Negatives, anchors: Anchors, settings: MiningSettings) -> Negatives:
    """Draw missing negatives from all documents but the anchor's own; their scores are NaN.

    Scores play no part here. A pair may stay short if there are few documents.
    """
    documents = negatives.documents.copy()
    rows = np.flatnonzero(~negatives.is_whole)
    filters = own_filters(anchors, settings).values()
    for draw in range(DRAWS * settings.negatives):
        if not len(rows):
            break
        # Another seed than that of `choose`, so the two choices are independent.
        mixed = _mixed(anchors.ids[rows], np.full(len(rows), draw), settings.seed + 1)
        drawn = (mixed % np.uint64(anchors.documents)).astype(np.int64)
        found = Neighbours(rows, drawn, np.full(len(rows), np.nan))
        fits = ~(documents[rows] == drawn[:, None]).any(axis=1)
        for is_dropped in filters:
            fits &= ~is_dropped(found)
        place = (documents[rows[fits]] == NONE).argmax(axis=1)
        documents[rows[fits], place] = drawn[fits]
        rows = rows[(documents[rows] == NONE).any(axis=1)]
    return Negatives(documents, negatives.scores)


def _mixed(ids: np.ndarray, numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return 64 random bits of each pair of an id and a number."""
    mixed = np.full(len(ids), seed, np.uint64)
    for values in (ids, numbers):
        mixed = _finalised(mixed * _STEP + values.astype(np.int64).view(np.uint64))
    return mixed


def _finalised(values: np.ndarray) -> np.ndarray:
    """Apply the output function of SplitMix64; arithmetic wraps around."""
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = values ^ (values >> np.uint64(31))
    return mixed
