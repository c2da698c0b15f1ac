"""Training by objectives that have texts written out again, in PyTorch. Runs on executors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.losses import LOSSES
from pipelines.losses.loss import Loss, Reconstruction
from pipelines.models.frameworks.torch import PRECISIONS, prepare
from pipelines.models.spec import EncoderSpec
from pipelines.pretraining.noise import generator
from pipelines.pretraining.torch_view import View
from pipelines.runs.run import TrainingRun
from pipelines.settings import ObjectiveSettings, TrainingSettings
from pipelines.tokens.special_ids import SpecialIds
from pipelines.training.steppers.micro_batches import part_bounds


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

    def parts(self, granule: Granule, epoch: int) -> list[Part]:
        """A granule's texts under noise, as many at a time as the settings say.

        The noise is that of the granule, whatever its parts are.
        """
        seed, side = self.training.seed, granule.sides[self.side]
        draw = generator(seed, epoch, granule.number)
        inputs = self.own.noise(side, self.ids, self.settings, draw)
        of_dropout = noise_seed(seed, epoch, granule.number)
        bounds = part_bounds(side.lengths, self.training.tokens_per_micro_batch)
        if len(bounds) == 2:
            return [Part(of_dropout, inputs)]
        return [
            Part((*of_dropout, number), {key: one[first:last] for key, one in inputs.items()})
            for number, (first, last) in enumerate(pairwise(bounds))
        ]

    def loss(
        self,
        weights: Mapping[str, torch.Tensor],
        own: Mapping[str, torch.Tensor],
        part: Part,
    ) -> torch.Tensor:
        """A part's share of the loss of its granule.

        Args:
            weights: The encoder's.
            own: The objective's, by their names without prefix.
            part: The texts.
        """
        precision = self.training.precision
        view = View(
            encoder=prepare(self.spec, weights, precision, self.own.form),
            own=own,
            dtype=PRECISIONS[precision],
            dropout=self.training.dropout,
            seed=part.seed,
            activation_checkpointing=self.training.activation_checkpointing,
        )
        loss: torch.Tensor = self.loss_of.form("torch")(view, part.inputs, self.settings)
        return loss


def rewriting(run: TrainingRun, spec: EncoderSpec, training: TrainingSettings) -> Rewriting | None:
    """The objective of a run, if it has texts written out again.

    Args:
        run: The run.
        spec: Of its encoder.
        training: Its settings, in which the precision is known.
    """
    loss = LOSSES.load(run.config.objective.name)
    if loss.reconstruction is None:
        return None
    assert run.special_ids is not None, "the driver has read them"
    (side,) = run.sides
    return Rewriting(
        loss_of=loss,
        own=loss.reconstruction,
        settings=run.config.objective,
        training=training,
        spec=spec,
        ids=run.special_ids,
        side=side,
    )
