"""What the embeddings of a granule are compared with: scores, vectors, or candidates to pick from.

A text that is as right as the anchor's own must not be pushed away: one of an example of the same
group, or one that says the same as the anchor or as its own positive, token by token. Leaving
such candidates out is the elimination of false negatives of Huynh et al., "Boosting Contrastive
Self-Supervised Learning with False Negative Cancellation", WACV 2022, arXiv:2011.11765, with what
the corpus knows in place of what a model supposes.

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
    """What some anchors pick from; arrays, or tensors of a framework.

    Candidates are numbered: the positives of all examples, then the first hard negative of each,
    the second of each, and so on; then, for a loss that compares with them, the anchors.

    Attributes:
        own: int64 [anchors], the candidate that is right; the number of the anchor's example.
        excluded: int64 [pairs, 2], anchor and candidate, in ascending order: what an anchor, or its
            positive, does not see. The anchors are counted from 0; neither its own positive nor
            itself is among them.
        guide: What tells false negatives instead of the model's own similarities: a teacher's
            vectors of the texts of each side, of length 1, as the loss takes the embeddings; empty
            where there is no teacher.
    """

    own: Any
    excluded: Any
    guide: Sequence[Any] = ()


def identities(granules: Iterable[Granule], sides: Sequence[str]) -> np.ndarray:
    """Return what tells examples, and their texts on the sides that are embedded, apart.

    int64 [examples, 1 + sides]: the group, and the key of the text on each side.
    """
    return np.concatenate(
        [
            np.stack([granule.groups, *(granule.sides[name].keys for name in sides)], axis=1)
            for granule in granules
        ]
    )


def teachers_vectors(granules: Iterable[Granule], sides: Sequence[str]) -> list[np.ndarray]:
    """Return the vectors that a teacher gave the texts of each side, fp32 [examples, width]."""
    held = [granule.teacher for granule in granules]
    return [np.concatenate([teacher[name] for teacher in held]) for name in sides]


class Candidates:
    """The candidates that some examples bring.

    Args:
        identities: Of the examples, see :func:`identities`: anchors, positives, and as many sides
            of hard negatives as there are.
        anchors: Whether anchors are candidates too.
        teacher: Of the examples, see :func:`teachers_vectors`; empty where they are not wanted.

    Attributes:
        anchors: As given.
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
        """How many candidates there are."""
        return self._examples * self._sides

    def picks(self, first: int, last: int) -> Picks:
        """Return what the anchors of examples ``first`` to ``last - 1`` pick from.

        Left out are all texts of other examples of the anchor's group, and all texts that equal
        the anchor or its positive, its own hard negatives too; never its positive nor the anchor
        itself. A group is no reason to leave out the example's own hard negatives.

        Takes memory and time by the pairs that are left out, which are few, and not by all.
        """
        own = np.arange(first, last)
        groups, anchor, positive = self._identities[first:last, :3].T
        anchors, others = self._groups.matches(groups)
        others_only = others != own[anchors]
        anchors, others = anchors[others_only], others[others_only]
        pairs = [(anchors, side * self._examples + others) for side in range(self._sides)]
        for keys in (anchor, positive):
            anchors, candidates = self._texts.matches(keys)
            others_only = candidates != own[anchors]
            if self.anchors:
                others_only &= candidates != own[anchors] + self.count - self._examples
            pairs.append((anchors[others_only], candidates[others_only]))
        numbers = np.unique(
            np.concatenate([anchors * self.count + candidates for anchors, candidates in pairs])
        )
        return Picks(
            own, np.stack(np.divmod(numbers, self.count), axis=1), self._guide(first, last)
        )

    def _guide(self, first: int, last: int) -> list[np.ndarray]:
        """Return the teacher's vectors of the texts that are compared; see :class:`Picks`."""
        if not self._teacher or self.anchors:
            return self._teacher
        anchors, *others = self._teacher
        return [anchors[first:last], *others]


class _Lookup:
    """Finds the places of values in an array that holds them more than once."""

    def __init__(self, values: np.ndarray) -> None:
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def matches(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all pairs of a wanted value's number and a place where it stands."""
        starts = np.searchsorted(self._sorted, wanted, "left")
        counts = np.searchsorted(self._sorted, wanted, "right") - starts
        numbers = np.repeat(np.arange(len(wanted)), counts)
        before = np.cumsum(counts) - counts
        places = np.arange(len(numbers)) + np.repeat(starts - before, counts)
        return numbers, self._order[places]


Targets = Picks | np.ndarray | list[np.ndarray]
"""The scores of a loss that needs them, fp32 [examples], or [examples, 1 + hard negatives] where it
needs those of the candidates; the vectors of a teacher of one that needs these, fp32 [examples,
width] for each side; of any other, which texts the anchors may be compared with. The forms of a
loss take all of them as tensors."""

SCORES: Mapping[str, Callable[[Granule], np.ndarray | None]] = {
    "scores": lambda granule: granule.scores,
    "candidate_scores": lambda granule: granule.candidate_scores,
}
"""What a granule has of the scores that a loss needs."""


def granule_targets(settings: ObjectiveSettings, granule: Granule, sides: Sequence[str]) -> Targets:
    """Return what the embeddings of a granule are compared with, if its negatives are its own.

    The sides are those that are embedded, as the loss takes them; there may be others.
    """
    needs = LOSSES.load(settings.name).needs
    if needs == "teacher":
        return teachers_vectors([granule], sides)
    scores = SCORES.get(needs)
    if scores is not None:
        found = scores(granule)
        assert found is not None, "the driver has seen that there are scores"
        return found
    candidates = Candidates(
        identities([granule], sides),
        anchors=settings.compares_anchors,
        teacher=teachers_vectors([granule], sides) if settings.uses_teacher else (),
    )
    return candidates.picks(0, granule.examples)
