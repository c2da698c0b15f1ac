"""Training by losses over hidden states, with weights of their own, in PyTorch. On executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from pipelines.catalog import LOSSES
from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.losses.loss import Loss
from pipelines.models.adaptation import of_objective, without_objective
from pipelines.models.architecture import Shapes
from pipelines.models.frameworks.torch import PRECISIONS, prepare
from pipelines.models.frameworks.torch_module import Unit
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.pretraining.start import generator
from pipelines.pretraining.torch_head import View
from pipelines.runs.run import TrainingRun
from pipelines.settings import TrainingSettings
from pipelines.training.steppers.packing import bounds, parts_needed


class Examples(NamedTuple):
    """Examples of a granule, with the seed of their dropout.

    `inputs` come from :attr:`pipelines.losses.loss.TokenLoss.inputs`.
    """

    seed: tuple[int, ...]
    inputs: Mapping[str, np.ndarray]


class TokenWork:
    """The inputs of a loss with weights of its own, and the loss of an encoder's hidden states."""

    def __init__(self, run: TrainingRun, spec: EncoderSpec, training: TrainingSettings) -> None:
        # All sources have the same objective, if it has weights of its own.
        self._settings = run.by_source[0].config.objective
        self._objective: Loss = LOSSES.load(self._settings.name)
        assert self._objective.token_loss is not None
        assert run.special_ids is not None, "the driver has read them"
        self._token_loss, self._ids = self._objective.token_loss, run.special_ids
        self._spec, self._training = spec, training
        # Of each source: one may have hard negatives, and another none.
        self._sides = [tuple(of_source.sides) for of_source in run.by_source]

    def width(self, granule: Granule, source: int) -> int:
        """Return the padded tokens of an example of a granule."""
        longest = [int(granule.sides[side].lengths.max()) for side in self._sides[source]]
        return int(self._token_loss.tokens(longest, self._settings))

    def parts(self, granule: Granule, source: int, epoch: int, width: int) -> list[Examples]:
        """Return a granule's examples, in as many parts as examples of a width need.

        Noise is the whole granule's, dropout a part's.
        """
        seed, sides = self._training.seed, self._sides[source]
        count = parts_needed(granule.examples, width, self._training.tokens_per_forward)
        draw = generator(seed, epoch, granule.number)
        # Drawn before the split, so that the noise does not depend on the number of parts.
        limit = getattr(self._spec, "positions", UNLIMITED)
        inputs = self._token_loss.inputs(granule, sides, self._ids, self._settings, draw, limit)
        of_dropout = noise_seed(seed, epoch, granule.number)
        if count == 1:
            return [Examples(of_dropout, inputs)]
        return [
            Examples((*of_dropout, number), {key: rows[first:last] for key, rows in inputs.items()})
            for number, (first, last) in enumerate(bounds(granule.examples, count))
        ]

    def loss(
        self,
        weights: Mapping[str, torch.Tensor],
        objective_weights: Mapping[str, torch.Tensor],
        part: Examples,
    ) -> torch.Tensor:
        """Return a part's share of the loss of its granule.

        `weights` are the encoder's; `objective_weights` have names without prefix.
        """
        precision = self._training.precision
        view = View(
            encoder=prepare(self._spec, weights, precision),
            own=objective_weights,
            dtype=PRECISIONS[precision],
            dropout=self._training.dropout,
            seed=part.seed,
            activation_checkpointing=self._training.activation_checkpointing,
        )
        loss: torch.Tensor = self._objective.form("torch")(view, part.inputs, self._settings)
        return loss


class TokenUnit(Unit):
    """An encoder and an objective's own weights, gathered at once.

    Some objectives use the word embedding at both ends of the encoder, and TSDAE each layer twice.
    """

    def __init__(self, token_work: TokenWork, shapes: Shapes) -> None:
        super().__init__(shapes)
        self._token_work = token_work

    def forward(self, parts: Sequence[Examples]) -> list[torch.Tensor]:
        """Return the loss of each part, a scalar."""
        weights = self.weights
        encoder, head = without_objective(weights), of_objective(weights)
        return [self._token_work.loss(encoder, head, part) for part in parts]


class TokenModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """Replaces :class:`pipelines.models.frameworks.torch_module.EncoderModule` for an objective.

    `shapes` are those of the trained weights.
    """

    def __init__(self, token_work: TokenWork, shapes: Shapes) -> None:
        super().__init__()
        self.whole = TokenUnit(token_work, shapes)

    def units(self) -> Iterator[Unit]:
        """Yield the one unit."""
        yield self.whole

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All parameters; see :attr:`pipelines.models.frameworks.torch_module.Unit.weights`."""
        return self.whole.weights

    def forward(self, parts: Sequence[Examples]) -> list[torch.Tensor]:
        """Return the loss of each part, a scalar."""
        losses: list[torch.Tensor] = self.whole(parts)
        return losses


def token_work(run: TrainingRun, spec: EncoderSpec, training: TrainingSettings) -> TokenWork | None:
    """Return a run's loss over tokens, if it has one; the precision of `training` is resolved."""
    loss: Loss = LOSSES.load(run.by_source[0].config.objective.name)
    return None if loss.token_loss is None else TokenWork(run, spec, training)
