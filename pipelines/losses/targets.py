"""What the embeddings of a granule are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.losses.candidates import Candidates, Picks, identities, teachers_vectors
from pipelines.settings import ObjectiveSettings

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
    """What the embeddings of a granule are compared with, if its negatives are its own.

    Args:
        settings: They name the loss.
        granule: All its sides may be there; those that are not embedded do not count.
        sides: Those that are embedded, as the loss takes them.
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
