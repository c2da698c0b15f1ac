"""A teacher's margins: how much the positive's score exceeds those of the hard negatives.

The scores come from the corpus, so a cross-encoder is asked once, and not in every step.

Source: Hofstätter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture
Knowledge Distillation", 2020, arXiv:2010.02666; the MarginMSELoss of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class MarginMseSettings(ObjectiveSettings):
    """How cosines are compared with a teacher's scores."""

    temperature: float = Field(
        default=0.05,
        gt=0,
        description=(
            "Divides cosine similarities before they are compared with a teacher's scores: their "
            "margins reach 2 divided by it. 1 for a teacher whose scores are cosines."
        ),
    )


def tensorflow(sides: Sequence[Any], scores: Any, settings: MarginMseSettings) -> Any:
    """The mean squared error of the margins; a scalar tensor.

    Args:
        sides: Anchors, positives, and each side of hard negatives.
        scores: [examples, 1 + negatives], the teacher's.
        settings: Give the temperature.
    """
    import tensorflow as tf

    anchor, positive, *negatives = sides
    margins = [tf.reduce_sum(anchor * (positive - one), axis=-1) for one in negatives]
    own = tf.stack(margins, 1) / settings.temperature
    return tf.reduce_mean(tf.square(own - (scores[:, :1] - scores[:, 1:])))


def torch(sides: Sequence[Any], scores: Any, settings: MarginMseSettings) -> Any:
    """The mean squared error of the margins; see :func:`tensorflow`."""
    import torch
    from torch.nn.functional import mse_loss

    anchor, positive, *negatives = sides
    margins = [(anchor * (positive - one)).sum(-1) for one in negatives]
    own = torch.stack(margins, 1) / settings.temperature
    return mse_loss(own, scores[:, :1] - scores[:, 1:])


LOSS = Loss(
    name="margin_mse",
    needs="candidate_scores",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=MarginMseSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
