"""Training in which each worker holds a part of the state. Runs on executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from pipelines.models.architecture import Shapes
from pipelines.models.arrays import shapes_of
from pipelines.models.frameworks.torch_sharding import EncoderModule, Inputs, encoder_module
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.feed import StepWork
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.micro_batches import Batch as Micro
from pipelines.training.steppers.micro_batches import (
    batches,
    by_side,
    granule_texts,
    parts_needed,
    per_batch,
)
from pipelines.training.steppers.objectives import Objective
from pipelines.training.steppers.step_negatives import pulls_on_embeddings
from pipelines.training.steppers.torch import TorchRun
from pipelines.training.steppers.torch_disk import DiskTensors
from pipelines.training.steppers.torch_inputs import device_inputs
from pipelines.training.steppers.torch_losses import gradients_of_loss, on_device, pulled_loss
from pipelines.training.steppers.torch_reconstruction import Part, Rewriting, RewritingModule

KINDS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""The optimiser's names for what checkpoints call m and v."""


class ShardedStepper(TorchRun, ABC):
    """What the libraries share that split the state; see :class:`.base.Stepper`.

    They average the gradients themselves, so the collectives carry losses and embeddings only.

    Args:
        checkpoint: The state to begin with.
        collectives: Between the workers that split it.
        everyone: Between all workers, where `collectives` is between some of them.
    """

    sharded = True
    exchange_seconds: float | None = None

    def __init__(
        self,
        task: WorkerTask,
        checkpoint: Checkpoint,
        collectives: Collectives,
        everyone: Collectives | None = None,
    ) -> None:
        super().__init__(task, checkpoint, collectives, everyone)
        self._shapes = shapes_of(checkpoint.weights)
        # Without memory: nobody holds all of it at any time.
        self._encoder: EncoderModule | RewritingModule
        if self._rewriting is not None:
            self._encoder = RewritingModule(self._rewriting, self._shapes)
        else:
            self._encoder = self._module()
        self._disk: DiskTensors | None = None

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        objective = self._objectives[work.source]
        if self._rewriting is not None:
            loss = self._rewritten(work, self._rewriting)
        elif objective.across_granules:
            loss = self._across(work, objective)
        else:
            loss = self._within(work, objective)
        self._update(learning_rate)
        (mean,) = self._collectives.all_reduce_mean([loss])
        return float(mean)

    def _module(self) -> EncoderModule:
        """The encoder, without memory."""
        return encoder_module(self._spec, self._training)

    @abstractmethod
    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, see :class:`.base.Stepper`; its arrays come when read."""

    def _weights_of(self, module: torch.nn.Module) -> dict[str, Any]:
        """The parameters of a part of the encoder, in canonical names."""
        own = {id(parameter) for parameter in module.parameters()}
        return {name: one for name, one in self._encoder.weights.items() if id(one) in own}

    def _moment(self, like: torch.Tensor) -> torch.Tensor:
        """Zeros in the shape of a part of the state, on the disk if that is asked for."""
        if self._disk is None:
            return torch.zeros_like(like)
        return self._disk.zeros(like.numel()).view(like.shape)

    def _begin_moments(self, parts: Iterable[torch.Tensor]) -> None:
        """Makes room for the moments of this worker's parts; before any :meth:`_moment`."""
        if self._training.offload == "disk":
            self._disk = DiskTensors(part.numel() for part in parts for _ in KINDS)

    def _let_go_after(self, optimiser: torch.optim.Optimizer) -> None:
        """Has an optimiser keep no more of the moments in memory than it updates at once."""
        if (disk := self._disk) is not None:
            optimiser.register_step_post_hook(lambda *of_step: disk.let_go())

    def _moment_shapes(self) -> Shapes:
        return {f"{kind}/{name}": shape for kind in KINDS for name, shape in self._shapes.items()}

    @abstractmethod
    def _embed(self, sides: Sequence[Inputs] | Sequence[Part]) -> list[torch.Tensor]:
        """The embeddings of the sides of a granule; gathers parameters on the way.

        Of an objective that has texts written out again, the losses of parts of a granule.
        """

    @abstractmethod
    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        """Adds a granule's gradients, over all workers.

        Args:
            loss: Of the granule.
            granules: Of this worker in the step; their gradients are averaged.
            last: Whether the update comes next.
        """

    @abstractmethod
    def _update(self, learning_rate: float) -> None:
        """Makes an update from the gradients, and forgets them."""

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives; see ``TorchStepper``."""
        losses, count = [], len(work.granules)
        for number, (granule, some) in enumerate(
            zip(work.granules, self._batches(work, objective), strict=True), 1
        ):
            targets = objective.targets(granule)
            if len(some) == 1:
                loss = objective.loss(self._embed_batch(some[0]), on_device(targets, self._device))
                self._backward(loss, count, last=number == count)
            else:
                own = self._embedded(some)
                loss, pulls = gradients_of_loss(objective.loss, own, targets, 1.0)
                self._pull(some, pulls, count, last=number == count)
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _rewritten(self, work: StepWork, rewriting: Rewriting) -> torch.Tensor:
        """Adds the gradients of an objective that has texts written out again."""
        count, needed = len(work.granules), [rewriting.parts_needed(one) for one in work.granules]
        if self._training.tokens_per_micro_batch is not None:
            # As many on every worker: they compute in step.
            needed = np.asarray(self._collectives.all_gather(np.array([needed]))).ravel().tolist()
        parts = [
            part
            for granule in work.granules
            for part in rewriting.parts(granule, work.noise_epoch, max(needed))
        ]
        total = torch.zeros((), device=self._device)
        for number, part in enumerate(parts, 1):
            (loss,) = self._embed([part])
            self._backward(loss, count, last=number == len(parts))
            total += loss.detach()
        return total / count

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step; see ``TorchStepper``.

        Every batch is embedded twice, the last one too, so that each graph is pulled through
        right after it was made: the libraries then gather the units in the same order each time.
        """
        candidates = objective.candidates(work.granules, self._collectives)
        some = [batch for of_granule in self._batches(work, objective) for batch in of_granule]
        own = self._embedded(some)
        gradients_of = partial(gradients_of_loss, objective.loss)
        loss, pulls = pulls_on_embeddings(
            own, candidates, self._collectives, gradients_of, torch.cat
        )
        # What adds a gradient divides by the number of granules.
        count = len(work.granules)
        self._pull(some, [pull * count for pull in pulls], count, last=True)
        return loss

    def _embedded(self, some: Sequence[Micro]) -> list[torch.Tensor]:
        """The embeddings of each side, without a graph."""
        with torch.no_grad():
            parts = [self._embed_batch(batch) for batch in some]
        return [torch.cat(side) for side in by_side(some, parts)]

    def _pull(
        self, some: Sequence[Micro], pulls: Sequence[torch.Tensor], granules: int, *, last: bool
    ) -> None:
        """Adds the gradients of batches, given those on the embeddings of each side.

        Args:
            granules: Of this worker in the step.
            last: Whether the update comes next.
        """
        for number, (batch, own) in enumerate(zip(some, per_batch(some, pulls), strict=True), 1):
            embeddings = self._embed_batch(batch)
            self._backward(
                pulled_loss(embeddings, own), granules, last=last and number == len(some)
            )

    def _batches(self, work: StepWork, objective: Objective) -> list[list[Micro]]:
        """The batches of each granule, as many on every worker, which embed in step.

        The numbers follow from all granules of the step, so not from how many workers there are.
        """
        most, seed = self._training.tokens_per_micro_batch, self._training.seed
        sides, epoch = objective.sides, work.noise_epoch
        granules = [granule_texts(one, sides, seed, epoch) for one in work.granules]
        parts = np.array([[parts_needed(side, most) for side in sides] for sides in granules])
        if most is not None:
            parts = np.asarray(self._collectives.all_gather(parts))
        return [batches(sides, parts.max(axis=0).tolist()) for sides in granules]

    def _embed_batch(self, batch: Micro) -> list[torch.Tensor]:
        inputs = device_inputs(batch, self._spec, self._training, self._device)
        return [normalize(side, dim=-1) for side in self._embed(inputs)]


def optimiser_of(
    weights: Mapping[str, torch.Tensor], shapes: Shapes, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW, that does not decay biases and layer norms.

    Args:
        weights: What this worker has of them, by name; parts may be flat.
        shapes: Of the whole.
        weight_decay: Of the others.
    """
    matrices = [value for name, value in weights.items() if len(shapes[name]) > 1]
    vectors = [value for name, value in weights.items() if len(shapes[name]) == 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=(BETA_1, BETA_2),
        eps=EPSILON,
        fused=True,
    )
