"""Training by objectives that have texts written out again, in PyTorch. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.losses.loss import Loss, Reconstruction
from pipelines.models.adaptation import of_objective, without_objective
from pipelines.models.architecture import Shapes
from pipelines.models.frameworks.torch import PRECISIONS, prepare
from pipelines.models.frameworks.torch_module import Unit
from pipelines.models.spec import EncoderSpec
from pipelines.pretraining.start import generator
from pipelines.pretraining.torch_head import View
from pipelines.runs.run import TrainingRun
from pipelines.settings import ObjectiveSettings, TrainingSettings
from pipelines.tokens.vocabulary import SpecialIds
from pipelines.training.steppers.base import bounds, parts_needed


class Part(NamedTuple):
    """Texts of a granule under noise.

    Attributes:
        seed: Of dropout.
        inputs: What :attr:`pipelines.losses.loss.Reconstruction.noise` made of them.
    """

    seed: tuple[int, ...]
    inputs: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """How texts are put under noise, and what it costs to find them again.

    Attributes:
        loss_of: The objective.
        own: What it has of its own.
        settings: Its settings.
        training: Seed, dropout, precision, and how much is in memory at once.
        spec: Of the encoder.
        ids: Of the vocabulary.
        side: Name of the texts.
    """

    loss_of: Loss
    own: Reconstruction
    settings: ObjectiveSettings
    training: TrainingSettings
    spec: EncoderSpec
    ids: SpecialIds
    side: str

    def parts_needed(self, granule: Granule) -> int:
        """Return in how many parts a granule is computed."""
        return parts_needed(granule.sides[self.side].lengths, self.training.tokens_per_micro_batch)

    def parts(self, granule: Granule, epoch: int, count: int) -> list[Part]:
        """Return a granule's texts under noise, in some parts; the noise is that of the granule.

        Args:
            granule: The texts.
            epoch: Of the step.
            count: How many parts.
        """
        seed, side = self.training.seed, granule.sides[self.side]
        draw = generator(seed, epoch, granule.number)
        inputs = self.own.noise(side, self.ids, self.settings, draw)
        of_dropout = noise_seed(seed, epoch, granule.number)
        if count == 1:
            return [Part(of_dropout, inputs)]
        return [
            Part((*of_dropout, number), {key: one[first:last] for key, one in inputs.items()})
            for number, (first, last) in enumerate(bounds(granule.examples, count))
        ]

    def loss(
        self,
        weights: Mapping[str, torch.Tensor],
        own: Mapping[str, torch.Tensor],
        part: Part,
    ) -> torch.Tensor:
        """Return a part's share of the loss of its granule.

        Args:
            weights: The encoder's.
            own: The objective's, by their names without prefix.
            part: The texts.
        """
        precision = self.training.precision
        view = View(
            encoder=prepare(self.spec, weights, precision),
            own=own,
            dtype=PRECISIONS[precision],
            dropout=self.training.dropout,
            seed=part.seed,
            activation_checkpointing=self.training.activation_checkpointing,
        )
        loss: torch.Tensor = self.loss_of.form("torch")(view, part.inputs, self.settings)
        return loss


class RewritingUnit(Unit):
    """An encoder and an objective's own weights, which are gathered at once.

    The objective uses the word embedding at both ends of the encoder, and TSDAE each layer twice.

    Args:
        rewriting: The objective.
        shapes: Of what is trained.
    """

    def __init__(self, rewriting: Rewriting, shapes: Shapes) -> None:
        super().__init__(shapes)
        self._rewriting = rewriting

    def forward(self, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Return the loss of each part, a scalar."""
        weights = self.weights
        encoder, own = without_objective(weights), of_objective(weights)
        return [self._rewriting.loss(encoder, own, part) for part in parts]


class RewritingModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """The same in the place of :class:`pipelines.models.frameworks.torch_module.EncoderModule`.

    Args:
        rewriting: The objective.
        shapes: Of what is trained.
    """

    def __init__(self, rewriting: Rewriting, shapes: Shapes) -> None:
        super().__init__()
        self.whole = RewritingUnit(rewriting, shapes)

    def units(self) -> Iterator[Unit]:
        """Yield the one unit."""
        yield self.whole

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`pipelines.models.frameworks.torch_module.Unit.weights`."""
        return self.whole.weights

    def forward(self, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Return the loss of each part, a scalar."""
        losses: list[torch.Tensor] = self.whole(parts)
        return losses


def rewriting(run: TrainingRun, spec: EncoderSpec, training: TrainingSettings) -> Rewriting | None:
    """Return the objective of a run, if it has texts written out again.

    Args:
        run: The run.
        spec: Of its encoder.
        training: Its settings, in which the precision is known.
    """
    # All sources have the same objective, if it has weights of its own.
    alone = run.by_source[0] if run.config.corpus.sources else run
    loss = LOSSES.load(alone.config.objective.name)
    if loss.reconstruction is None:
        return None
    assert run.special_ids is not None, "the driver has read them"
    (side,) = alone.sides
    return Rewriting(
        loss_of=loss,
        own=loss.reconstruction,
        settings=alone.config.objective,
        training=training,
        spec=spec,
        ids=run.special_ids,
        side=side,
    )
