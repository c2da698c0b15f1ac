"""What a framework minimises in a step: of several sources, each has its own objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.losses.candidates import Candidates
from pipelines.losses.loss import configured_loss, spans_steps
from pipelines.losses.targets import Targets, granule_targets
from pipelines.runs.run import TrainingRun
from pipelines.settings import ObjectiveSettings
from pipelines.training.collectives.base import Collectives
from pipelines.training.steppers.step_negatives import gathered_candidates

LossOf = Callable[[Sequence[Any], Any], Any]
"""A loss of the embeddings of the sides and the targets, as a framework computes it."""


@dataclass(frozen=True)
class Objective:
    """The loss of a source, in a framework.

    Attributes:
        settings: They name the loss.
        sides: Of a granule, in the order in which the loss takes them.
        loss: Of the embeddings of the sides and the targets.
        across_granules: Whether negatives come from all granules of a step.
    """

    settings: ObjectiveSettings
    sides: tuple[str, ...]
    loss: LossOf
    across_granules: bool

    @property
    def needs(self) -> str:
        """Of the corpus; see :class:`~pipelines.losses.loss.Loss`."""
        needs: str = LOSSES.load(self.settings.name).needs
        return needs

    def candidates(self, granules: Sequence[Granule], collectives: Collectives) -> Candidates:
        """What all workers bring to a step to compare with; all workers call it."""
        return gathered_candidates(
            granules,
            self.sides,
            collectives,
            anchors=self.settings.compares_anchors,
            teacher=self.settings.uses_teacher,
        )

    def targets(self, granule: Granule) -> Targets:
        """What the embeddings of a granule are compared with, if its negatives are its own."""
        return granule_targets(self.settings, granule, self.sides)


def objectives(run: TrainingRun, framework: str) -> tuple[Objective, ...]:
    """The objective of each source of a run, by its number."""
    alone = run.by_source if run.config.corpus.sources else (run,)
    return tuple(
        Objective(
            one.config.objective,
            tuple(one.sides),
            configured_loss(one.config.objective, framework),
            spans_steps(one.config.objective),
        )
        for one in alone
    )
