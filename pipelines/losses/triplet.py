"""A margin between an anchor's distance to its positive and those to its hard negatives.

The distance is 1 less the cosine. Other examples do not count. Source: Schroff, Kalenichenko and
Philbin, "FaceNet: A Unified Embedding for Face Recognition and Clustering", CVPR 2015,
arXiv:1503.03832; its margin of 0.2 between squared distances of unit vectors is 0.1 of a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.losses.operations import Operations, both_forms
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    from pipelines.losses.candidates import Picks


class TripletSettings(ObjectiveSettings):
    """How much nearer the positive is to be."""

    margin: float = Field(
        default=0.1,
        gt=0,
        le=2,
        description="By how much the pair's cosine is to exceed those of the hard negatives.",
    )


def triplet(
    operations: Operations, sides: Sequence[Any], picks: Picks, settings: TripletSettings
) -> Any:
    """Return the mean shortfall to the margin, over examples and negatives."""
    anchor, positive, *negatives = sides
    above = [operations.cosines(anchor, negative - positive) for negative in negatives]
    return operations.mean(operations.relu(operations.columns(above) + settings.margin))


LOSS = Loss(
    name="triplet",
    summary=(
        "A margin between the distances of an anchor to its positive and to its hard negatives."
    ),
    needs="triplets",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=TripletSettings,
    forms=both_forms(triplet),
)
