"""The losses: one file each, the frameworks' forms side by side.

The forms of TensorFlow and PyTorch take the embeddings of an example's sides as a list, [examples,
width] each, in the order of the objective's ``sides``; the scores [examples], zeros where there are
none; and the temperature. They return the mean loss. BigDL's, which is a part of a graph, says
itself what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from pipelines.lanes.files import SideName
from pipelines.settings import ObjectiveSettings


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a loss needs, and where its forms are.

    Attributes:
        module: Module with a function per framework, named like the framework.
        needs: `pairs`, `scores` (scored pairs), or `singles`.
        sides: The texts of an example that it embeds, each under noise of its own; those that
            the lanes do not have are left out.
        uses_negatives: Whether examples see one another, so that `objective.negatives` counts.
    """

    module: str
    needs: Literal["pairs", "scores", "singles"]
    sides: tuple[SideName, ...]
    uses_negatives: bool

    def form(self, framework: str) -> Callable[..., Any]:
        """The form of a framework; imports that framework."""
        form: Callable[..., Any] = getattr(import_module(self.module), framework)
        return form


def configured_loss(
    settings: ObjectiveSettings, framework: str
) -> Callable[[Sequence[Any], Any], Any]:
    """The loss that is configured, of the sides and the scores; imports the framework."""
    loss = OBJECTIVES[settings.name].form(framework)
    return lambda sides, scores: loss(sides, scores, settings.temperature)


def spans_steps(settings: ObjectiveSettings) -> bool:
    """Whether negatives come from all granules of a step, on whatever worker they are."""
    return settings.negatives == "step" and OBJECTIVES[settings.name].uses_negatives


OBJECTIVES = {
    "in_batch_negatives": Objective(
        module="pipelines.objectives.in_batch_negatives",
        needs="pairs",
        sides=("left", "right", "negative"),
        uses_negatives=True,
    ),
    "cosine_regression": Objective(
        module="pipelines.objectives.cosine_regression",
        needs="scores",
        sides=("left", "right"),
        uses_negatives=False,
    ),
    "twins": Objective(
        module="pipelines.objectives.in_batch_negatives",
        needs="singles",
        sides=("left", "left"),
        uses_negatives=True,
    ),
}
