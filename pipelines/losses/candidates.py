"""Targets of a granule's embeddings: scores, vectors, or candidates to pick from.

A loss must not push away texts as right as the anchor's own positive: the texts of its group, and
texts equal, token by token, to the anchor or its positive. Source of their elimination: Huynh et
al., "Boosting Contrastive Self-Supervised Learning with False Negative Cancellation", WACV 2022,
arXiv:2011.11765. Here the corpus tells false negatives, and not a model's guess.

Plain numpy, the same for all frameworks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.settings import ObjectiveSettings


class Picks(NamedTuple):
    """The candidates of some anchors; arrays, or tensors of a framework.

    The first candidates are the positives of all examples. The first hard negative of each follows,
    then the second of each, and so on. The anchors come last, if the loss compares with them.

    Attributes:
        own: int64 [anchors], the right candidate; the number of the anchor's example.
        excluded: int64 [pairs, 2], anchor and candidate, in ascending order: candidates hidden from
            an anchor or its positive. Anchors count from 0; never its own positive nor itself.
        guide: A teacher's vectors of each side's texts, of length 1, in the order of the
            embeddings. They tell false negatives in place of the model's. Empty without a teacher.
    """

    own: Any
    excluded: Any
    guide: Sequence[Any] = ()


def identities(granules: Iterable[Granule], sides: Sequence[str]) -> np.ndarray:
    """Return the identities of examples and of their texts, int64 [examples, 1 + sides].

    A row holds the group, and the key of the text on each embedded side.
    """
    return np.concatenate(
        [
            np.stack([granule.groups, *(granule.sides[name].keys for name in sides)], axis=1)
            for granule in granules
        ]
    )


def teachers_vectors(granules: Iterable[Granule], sides: Sequence[str]) -> list[np.ndarray]:
    """Return a teacher's vectors of the texts of each side, fp32 [examples, width]."""
    held = [granule.teacher for granule in granules]
    return [np.concatenate([teacher[name] for teacher in held]) for name in sides]


class Candidates:
    """The candidates of some examples.

    ``identities`` are of :func:`identities`: anchors, positives, and any sides of hard negatives.
    ``teacher`` is of :func:`teachers_vectors`; empty if unused. With ``anchors``, anchors are
    candidates too.
    """

    def __init__(
        self,
        identities: np.ndarray,
        *,
        anchors: bool = False,
        teacher: Sequence[np.ndarray] = (),
    ) -> None:
        self.anchors = anchors
        self._teacher = list(teacher)
        self._identities = identities
        self._examples, columns = identities.shape
        sides = [*range(2, columns), 1] if anchors else [*range(2, columns)]
        self._sides = len(sides)
        self._groups = _Lookup(identities[:, 0])
        self._texts = _Lookup(identities[:, sides].T.reshape(-1))

    @property
    def count(self) -> int:
        """The number of candidates."""
        return self._examples * self._sides

    def picks(self, first: int, last: int) -> Picks:
        """Return the candidates of the anchors of examples ``first`` to ``last - 1``.

        Excluded are all texts of other examples of the anchor's group. So are all texts equal to
        the anchor or its positive, even among the example's hard negatives. The positive and the
        anchor themselves stay. Memory and time grow with the few excluded pairs, not with all.
        """
        examples = np.arange(first, last)
        groups, anchor, positive = self._identities[first:last, :3].T
        anchors, members = self._groups.matches(groups)
        is_other = members != examples[anchors]
        anchors, members = anchors[is_other], members[is_other]
        pairs = [(anchors, side * self._examples + members) for side in range(self._sides)]
        for keys in (anchor, positive):
            anchors, candidates = self._texts.matches(keys)
            is_other = candidates != examples[anchors]
            if self.anchors:
                # Anchors are the last candidates.
                is_other &= candidates != examples[anchors] + self.count - self._examples
            pairs.append((anchors[is_other], candidates[is_other]))
        # Both in one number, so that one sort finds repeated pairs and puts them in order.
        numbers = np.unique(
            np.concatenate([anchors * self.count + candidates for anchors, candidates in pairs])
        )
        return Picks(
            examples, np.stack(np.divmod(numbers, self.count), axis=1), self._guide(first, last)
        )

    def _guide(self, first: int, last: int) -> list[np.ndarray]:
        if not self._teacher or self.anchors:
            return self._teacher
        anchors, *documents = self._teacher
        return [anchors[first:last], *documents]


class _Lookup:
    """Finds the places of values in an array with repeated values."""

    def __init__(self, values: np.ndarray) -> None:
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def matches(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs of a wanted value's number and a place of the value."""
        starts = np.searchsorted(self._sorted, wanted, "left")
        counts = np.searchsorted(self._sorted, wanted, "right") - starts
        numbers = np.repeat(np.arange(len(wanted)), counts)
        before = np.cumsum(counts) - counts
        places = np.arange(len(numbers)) + np.repeat(starts - before, counts)
        return numbers, self._order[places]


Targets = Picks | np.ndarray | list[np.ndarray]
"""What a loss compares embeddings with. Scores are fp32 [examples], or [examples, 1 + hard
negatives] for all candidates. A teacher's vectors are fp32 [examples, width] for each side. Other
losses get the candidates of the anchors. The forms of a loss take all of them as tensors."""

SCORES: Mapping[str, Callable[[Granule], np.ndarray | None]] = {
    "scores": lambda granule: granule.scores,
    "candidate_scores": lambda granule: granule.candidate_scores,
}
"""The scores of a granule, by the need of a loss."""


def granule_targets(settings: ObjectiveSettings, granule: Granule, sides: Sequence[str]) -> Targets:
    """Return the targets of a granule with negatives of its own, for the embedded sides."""
    needs = LOSSES.load(settings.name).needs
    if needs == "teacher":
        return teachers_vectors([granule], sides)
    scores = SCORES.get(needs)
    if scores is not None:
        found = scores(granule)
        assert found is not None, "the driver has checked for scores"
        return found
    candidates = Candidates(
        identities([granule], sides),
        anchors=settings.compares_anchors,
        teacher=teachers_vectors([granule], sides) if settings.uses_teacher else (),
    )
    return candidates.picks(0, granule.examples)
