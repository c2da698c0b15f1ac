"""A loss as somebody adds it: one module, and one line in the registry."""

from __future__ import annotations

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.losses.operations import both_forms
from pipelines.settings.objective import ObjectiveSettings


class ToySettings(ObjectiveSettings):
    """How scores are compared."""

    power: float = Field(default=1.0, gt=0, description="Of the difference to the score.")


def toy(operations, sides, scores, settings: ToySettings):
    return operations.mean(abs(operations.cosines(*sides) - scores) ** settings.power)


LOSS = Loss(
    name="toy",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=ToySettings,
    forms=both_forms(toy),
)
