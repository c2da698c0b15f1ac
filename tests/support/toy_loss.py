"""A loss as somebody adds it: one module, and one line in the registry."""

from __future__ import annotations

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class ToySettings(ObjectiveSettings):
    """How scores are compared."""

    power: float = Field(default=1.0, gt=0, description="Of the difference to the score.")


def tensorflow(sides, scores, settings: ToySettings):
    import tensorflow as tf

    left, right = sides
    differences = tf.abs(tf.reduce_sum(left * right, axis=-1) - scores)
    return tf.reduce_mean(differences**settings.power)


def torch(sides, scores, settings: ToySettings):
    left, right = sides
    return (((left * right).sum(-1) - scores).abs() ** settings.power).mean()


LOSS = Loss(
    name="toy",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=ToySettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
