"""A margin between an anchor's distance to its positive and those to its hard negatives.

The distance is 1 less the cosine. Other examples do not count.

Source: Schroff, Kalenichenko and Philbin, "FaceNet: A Unified Embedding for Face Recognition and
Clustering", CVPR 2015, arXiv:1503.03832; its margin of 0.2 between squared distances of unit
vectors is 0.1 of a cosine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from pipelines.losses.loss import Loss
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


def tensorflow(sides: Sequence[Any], picks: Picks, settings: TripletSettings) -> Any:
    """The mean of what is lacking to the margin, over examples and negatives; a scalar tensor."""
    import tensorflow as tf

    anchor, positive, *negatives = sides
    lacking = [
        settings.margin + tf.reduce_sum(anchor * (negative - positive), axis=-1)
        for negative in negatives
    ]
    return tf.reduce_mean(tf.nn.relu(lacking))


def torch(sides: Sequence[Any], picks: Picks, settings: TripletSettings) -> Any:
    """The mean of what is lacking to the margin, over examples and negatives; a scalar tensor."""
    import torch

    anchor, positive, *negatives = sides
    lacking = [settings.margin + (anchor * (one - positive)).sum(-1) for one in negatives]
    return torch.relu(torch.stack(lacking)).mean()


LOSS = Loss(
    name="triplet",
    needs="triplets",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=TripletSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
