"""The pairs of a part as arrays: what documents are compared with. Used on executors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """Pairs of anchors and positives, and what is known to belong to each anchor.

    Documents are known by their positions in the table of all documents. Sets of pairs of small
    numbers are sorted arrays of `first * documents + second`, so that many are looked up at once.

    Attributes:
        documents: How many there are.
        ids: int64 [pairs], the same for the same pair of texts wherever it is; may be negative.
        vectors: fp32 [pairs, dimensions], of the anchors, of length 1.
        positive_scores: [pairs], cosines of anchors and positives.
        numbers: int64 [pairs]: equal for pairs of the same anchor text, ascending from 0.
        own: int64 [pairs]: the document whose text is the anchor's; -1 where there is none.
        positives: Sorted int64: pairs of an anchor's number and a document.
        group_starts: int64 [anchors + 1]: where the groups of an anchor begin in ``groups``.
        groups: int64: numbers of groups, anchor by anchor.
        group_documents: Sorted int64: pairs of a group's number and a document.
    """

    documents: int
    ids: np.ndarray
    vectors: np.ndarray
    positive_scores: np.ndarray
    numbers: np.ndarray
    own: np.ndarray
    positives: np.ndarray
    group_starts: np.ndarray
    groups: np.ndarray
    group_documents: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    def lowest_positive_scores(self) -> np.ndarray:
        """[pairs], the score of the least similar positive of the anchor of each pair."""
        lowest = np.full(int(self.numbers.max(initial=-1)) + 1, np.inf)
        np.minimum.at(lowest, self.numbers, self.positive_scores)
        found: np.ndarray = lowest[self.numbers]
        return found

    def are_positives(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Whether each document is a known positive of the anchor of each pair.

        Args:
            rows: Of pairs.
            documents: Positions, as many.
        """
        return is_in(self.numbers[rows] * self.documents + documents, self.positives)

    def are_of_group(self, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Whether each document has a group of the anchor of each pair; see above."""
        found = np.zeros(len(rows), bool)
        if not len(self.group_documents):
            return found
        numbers = self.numbers[rows]
        counts = self.group_starts[numbers + 1] - self.group_starts[numbers]
        for start, stop in _runs(counts):
            some = slice(start, stop)
            rows_of = np.repeat(np.arange(start, stop), counts[some])
            offsets = np.arange(len(rows_of)) - np.repeat(
                np.cumsum(counts[some]) - counts[some], counts[some]
            )
            groups = self.groups[self.group_starts[numbers[rows_of]] + offsets]
            shared = is_in(groups * self.documents + documents[rows_of], self.group_documents)
            found[rows_of[shared]] = True
        return found


_LOOKED_UP = 2**21
"""Pairs of a document and a group that are looked up at a time, but for those of one document."""


def _runs(counts: np.ndarray) -> list[tuple[int, int]]:
    """Cuts rows with so many groups each into runs of not much more than :data:`_LOOKED_UP`."""
    if not len(counts):
        return []
    turns = np.cumsum(counts) // _LOOKED_UP
    starts = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(counts)]
    return list(pairwise(starts))


def is_in(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Whether each value is in a sorted array."""
    if not len(known):
        return np.zeros(len(values), bool)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: np.ndarray = known[places] == values
    return found
