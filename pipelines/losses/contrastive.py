"""Pairs with a label: those of 1 are drawn together, those of 0 pushed apart up to a margin.

The distance is 1 less the cosine.

Source: Hadsell, Chopra and LeCun, "Dimensionality Reduction by Learning an Invariant Mapping",
CVPR 2006; the ContrastiveLoss of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class ContrastiveSettings(ObjectiveSettings):
    """How far apart is far enough."""

    margin: float = Field(
        default=0.5,
        gt=0,
        le=2,
        description="Pairs of label 0 whose distance, 1 less the cosine, is more are left alone.",
    )


def tensorflow(sides: Sequence[Any], labels: Any, settings: ContrastiveSettings) -> Any:
    """Half the mean squared distance, or what is lacking to the margin; a scalar tensor."""
    import tensorflow as tf

    anchor, positive = sides
    distance = 1 - tf.reduce_sum(anchor * positive, axis=-1)
    lacking = tf.nn.relu(settings.margin - distance)
    return tf.reduce_mean(labels * distance**2 + (1 - labels) * lacking**2) / 2


def torch(sides: Sequence[Any], labels: Any, settings: ContrastiveSettings) -> Any:
    """Half the mean squared distance, or what is lacking to the margin; a scalar tensor."""
    import torch

    anchor, positive = sides
    distance = 1 - (anchor * positive).sum(-1)
    lacking = torch.relu(settings.margin - distance)
    return (labels * distance**2 + (1 - labels) * lacking**2).mean() / 2


LOSS = Loss(
    name="contrastive",
    needs="scores",
    labels=True,
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=ContrastiveSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
