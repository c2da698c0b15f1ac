"""The losses: one file each, the frameworks' forms side by side.

Every form takes the embeddings of the left and right texts, [examples, width], the scores
[examples] (zeros where there are none) and the temperature, and returns the mean loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Loss = Callable[[Any, Any, Any, float], Any]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What a loss needs, and where its forms are.

    Attributes:
        module: Module with a function per framework, named like the framework.
        needs: `pairs`, `scores` (scored pairs), or `singles`, whose right side is the left
            one under other noise.
        uses_negatives: Whether examples see one another, so that `objective.negatives` counts.
    """

    module: str
    needs: Literal["pairs", "scores", "singles"]
    uses_negatives: bool

    def loss(self, framework: str) -> Loss:
        """The form of a framework; imports that framework."""
        form: Loss = getattr(import_module(self.module), framework)
        return form


OBJECTIVES = {
    "in_batch_negatives": Objective(
        module="pipelines.objectives.in_batch_negatives", needs="pairs", uses_negatives=True
    ),
    "cosine_regression": Objective(
        module="pipelines.objectives.cosine_regression", needs="scores", uses_negatives=False
    ),
    "twins": Objective(
        module="pipelines.objectives.in_batch_negatives", needs="singles", uses_negatives=True
    ),
}
