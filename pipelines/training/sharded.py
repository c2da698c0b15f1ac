"""Training in which each worker holds a part of the state. Runs on executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pipelines.encoder.torch import configure_threads
from pipelines.encoder.torch_kernels import Batch, Noise
from pipelines.encoder.torch_module import EncoderModule, Inputs
from pipelines.objectives import configured_loss, spans_steps
from pipelines.settings import TrainingSettings
from pipelines.training.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.devices import worker_device
from pipelines.training.exchange import Exchange
from pipelines.training.feed import StepWork
from pipelines.training.precision import with_precision
from pipelines.training.run import WorkerTask
from pipelines.training.torch import Texts, granule_scores, granule_texts, to_numpy

KINDS = {"m": "exp_avg", "v": "exp_avg_sq"}
"""The optimiser's names for what checkpoints call m and v."""


class ShardedStepper(ABC):
    """What the libraries share that split the state; see :class:`pipelines.training.loop.Stepper`.

    They average the gradients themselves, so the exchange carries losses and embeddings only.

    Args:
        task: The worker's task.
        checkpoint: The state to begin with.
        exchange: Between the workers.
    """

    sharded = True
    exchange_seconds: float | None = None

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, exchange: Exchange) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        self._exchange = exchange
        self._loss = configured_loss(config.objective, "torch")
        self._sides = task.run.sides
        self._across_granules = spans_steps(config.objective)
        self._device = worker_device()
        on_gpu = self._device.type == "cuda"
        self._training = with_precision(config.training, on_gpu=on_gpu)
        self._encoder = EncoderModule(checkpoint.spec, checkpoint.weights, self._training)

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives PyTorch its threads."""
        configure_threads(settings.threads)

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        loss = self._across(work) if self._across_granules else self._within(work)
        self._update(learning_rate)
        (mean,) = self._exchange.mean([loss])
        return float(mean)

    @abstractmethod
    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step; its arrays are with rank 0. All workers call it at once."""

    def _optimiser_of(self, weights: Mapping[str, torch.Tensor]) -> torch.optim.AdamW:
        """AdamW, that does not decay biases and layer norms."""
        matrices = [value for value in weights.values() if value.ndim > 1]
        vectors = [value for value in weights.values() if value.ndim == 1]
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self._training.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            betas=(BETA_1, BETA_2),
            eps=EPSILON,
            fused=True,
        )

    def _whole(
        self, parts: Mapping[str, Any], gather: Callable[[Any], torch.Tensor]
    ) -> dict[str, np.ndarray]:
        """Gathers one array after the other; rank 0 keeps them."""
        arrays = {}
        for name, part in parts.items():
            whole = gather(part)
            if self._exchange.rank == 0:
                arrays[name] = to_numpy(whole)
        return arrays

    @abstractmethod
    def _embed(self, sides: Sequence[Inputs]) -> list[torch.Tensor]:
        """The embeddings of the sides of a granule; gathers parameters on the way."""

    @abstractmethod
    def _backward(self, loss: torch.Tensor, granules: int, *, last: bool) -> None:
        """Adds a granule's gradients, over all workers.

        Args:
            loss: Of the granule.
            granules: Of this worker in the step; their gradients are meaned.
            last: Whether the update comes next.
        """

    @abstractmethod
    def _update(self, learning_rate: float) -> None:
        """Makes an update from the gradients, and forgets them."""

    def _within(self, work: StepWork) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives; see ``TorchStepper``."""
        losses = []
        for number, granule in enumerate(work.granules, 1):
            texts = granule_texts(granule, self._sides, self._training.seed, work.epoch)
            scores = granule_scores(granule, self._device)
            loss = self._loss(self._embed(self._inputs(texts)), scores)
            self._backward(loss, len(work.granules), last=number == len(work.granules))
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _across(self, work: StepWork) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step; see ``TorchStepper``.

        Every granule is embedded twice, the last one too, so that each graph is pulled through
        right after it was made: the libraries then gather the units in the same order each time.
        """
        granules = [
            self._inputs(granule_texts(granule, self._sides, self._training.seed, work.epoch))
            for granule in work.granules
        ]
        with torch.no_grad():
            parts = [self._embed(sides) for sides in granules]
        own = [torch.cat(side) for side in zip(*parts, strict=True)]
        everywhere = [self._exchange.gather(side).requires_grad_() for side in own]
        loss = self._loss(everywhere, None)
        loss.backward()
        examples, count = len(own[0]), len(granules)
        start = self._exchange.rank * examples
        # Each worker holds its part of the sum, and the libraries give the mean.
        share = self._exchange.workers * count
        pulls = [side.grad[start : start + examples] * share for side in everywhere]
        sizes = [granule.examples for granule in work.granules]
        per_granule = zip(*(pull.split(sizes) for pull in pulls), strict=True)
        for number, (sides, own_pulls) in enumerate(zip(granules, per_granule, strict=True), 1):
            embeddings = self._embed(sides)
            # A number whose gradient on the embeddings is the pull.
            pulled = sum(
                (side * pull).sum() for side, pull in zip(embeddings, own_pulls, strict=True)
            )
            self._backward(pulled, count, last=number == count)
        return loss.detach()

    def _inputs(self, texts: Sequence[Texts]) -> list[Inputs]:
        share = self._training.dropout
        return [
            Inputs(
                Batch.of(ids, lengths, self._device),
                Noise(share, seed, self._device) if share else None,
            )
            for ids, lengths, seed in texts
        ]
