"""PyTorch's side of training: gradients of a granule, and AdamW. Runs on an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.optim.adamw import adamw

from pipelines.encoder.torch import Encoder, configure_threads, embed, ready
from pipelines.encoder.torch_kernels import to_device
from pipelines.encoder.weights import WORDS, Weights
from pipelines.lanes.files import Granule, SideName
from pipelines.lanes.plan import noise_seed
from pipelines.objectives import configured_loss, spans_steps
from pipelines.settings import TrainingSettings
from pipelines.training.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.checkpoint import Checkpoint
from pipelines.training.devices import worker_device
from pipelines.training.exchange import Exchange, Timed
from pipelines.training.feed import StepWork
from pipelines.training.precision import with_precision
from pipelines.training.run import WorkerTask


class Texts(NamedTuple):
    """One side of a granule; see :func:`pipelines.encoder.torch.forward`."""

    token_ids: np.ndarray
    lengths: np.ndarray
    seed: tuple[int, int]


class TorchStepper:
    """Makes optimiser updates; see :class:`pipelines.training.loop.Stepper`.

    Weights and moments are plain tensors by name. Gradients come from ``backward``, which adds
    granule to granule in place.

    Args:
        task: The worker's task.
        checkpoint: The state to begin with.
        exchange: How gradients are averaged between workers.
    """

    sharded = False

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, exchange: Exchange) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        self._exchange = Timed(exchange)
        self._loss = configured_loss(config.objective, "torch")
        self._sides = task.run.sides
        self._across_granules = spans_steps(config.objective)
        self._device = worker_device()
        on_gpu = self._device.type == "cuda"
        self._training = with_precision(config.training, on_gpu=on_gpu)
        self._weights = {
            name: torch.tensor(value, device=self._device, requires_grad=True)
            for name, value in checkpoint.weights.items()
        }
        self._moments = {
            f"{kind}/{name}": torch.tensor(
                checkpoint.moments.get(f"{kind}/{name}", np.zeros_like(value)), device=self._device
            )
            for kind in ("m", "v")
            for name, value in checkpoint.weights.items()
        }
        # Kept, since it is half of a small encoder and only some rows of it are ever written.
        self._word_gradient = torch.zeros_like(self._weights[WORDS])
        self._embed = partial(
            embed,
            dropout=self._training.dropout,
            activation_checkpointing=self._training.activation_checkpointing,
            sparse_words=True,
        )

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives PyTorch its threads."""
        configure_threads(settings.threads)

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds in the exchange so far; None on a GPU, which only queues what it is given."""
        return None if self._device.type == "cuda" else self._exchange.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        loss, gradients = self._loss_and_gradients(work)
        *means, mean_loss = self._exchange.mean([*gradients.values(), loss])
        self._update(dict(zip(gradients, means, strict=True)), learning_rate, work.index + 1)
        return float(mean_loss)

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Loss and clipped gradients of this worker's granules at given weights."""
        _assign(self._weights, weights)
        loss, gradients = self._loss_and_gradients(work)
        excess = self._excess(gradients)
        return float(loss), {
            name: to_numpy(gradient if excess is None else gradient / excess)
            for name, gradient in gradients.items()
        }

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes another state, of the same shape."""
        _assign(self._weights, checkpoint.weights)
        _assign(self._moments, checkpoint.moments)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays."""
        return Checkpoint(
            step=step,
            spec=self._spec,
            weights={name: to_numpy(value) for name, value in self._weights.items()},
            moments={name: to_numpy(value) for name, value in self._moments.items()},
        )

    def _loss_and_gradients(self, work: StepWork) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The mean loss, and its gradients; they are valid until the next call."""
        for weight in self._weights.values():
            weight.grad = None
        self._weights[WORDS].grad = self._word_gradient.zero_()
        loss = self._across(work) if self._across_granules else self._within(work)
        return loss, {name: weight.grad for name, weight in self._weights.items()}

    def _within(self, work: StepWork) -> torch.Tensor:
        """Adds the gradients with each granule's own negatives, meaned over the granules."""
        losses = []
        for granule in work.granules:
            embeddings = self._embed_sides(self._inputs(granule, work.epoch))
            scores = granule_scores(granule, self._device)
            loss = self._loss(embeddings, scores)
            (loss / len(work.granules)).backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _across(self, work: StepWork) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step, one granule in memory.

        Embeddings without a graph, gathered over the workers; the loss's gradient on them; then
        each granule once more, pulling its part of that gradient through. The last granule keeps
        its graph, which spares it the second pass. Source: Gao, Zhang, Han and Callan, "Scaling
        Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP 2021,
        arXiv:2101.06983.
        """
        *earlier, last = [self._inputs(granule, work.epoch) for granule in work.granules]
        with torch.no_grad():
            parts = [self._embed_sides(sides) for sides in earlier]
        parts.append(self._embed_sides(last))
        own = [torch.cat([part.detach() for part in side]) for side in zip(*parts, strict=True)]
        everywhere = [self._exchange.gather(side).detach().requires_grad_() for side in own]
        loss = self._loss(everywhere, None)
        loss.backward()
        examples = len(own[0])
        start = self._exchange.rank * examples
        # Each worker holds its part of the sum, and the exchange gives the mean.
        pulls = [
            side.grad[start : start + examples] * self._exchange.workers for side in everywhere
        ]
        sizes = [granule.examples for granule in work.granules]
        *earlier_pulls, last_pulls = zip(*(pull.split(sizes) for pull in pulls), strict=True)
        torch.autograd.backward(parts.pop(), last_pulls)
        for sides, own_pulls in zip(earlier, earlier_pulls, strict=True):
            torch.autograd.backward(self._embed_sides(sides), own_pulls)
        return loss.detach()

    def _inputs(self, granule: Granule, epoch: int) -> list[Texts]:
        return granule_texts(granule, self._sides, self._training.seed, epoch)

    def _embed_sides(self, sides: Sequence[Texts]) -> list[torch.Tensor]:
        """Side by side: what a CPU computes then stays in its cache more often."""
        encoder = self._encoder()
        return [self._embed(encoder, ids, lengths, seed=seed) for ids, lengths, seed in sides]

    def _encoder(self) -> Encoder:
        return ready(self._spec, self._weights, self._training.precision)

    def _excess(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """What gradients are divided by to be clipped by their global norm; None if never."""
        clip = self._training.clip_norm
        if not clip:
            return None
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        return (norm / clip).clamp(min=1.0)

    def _update(
        self, gradients: Mapping[str, torch.Tensor], learning_rate: float, number: int
    ) -> None:
        """AdamW with clipping by the global norm, in the fused kernel, which divides too.

        Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
        arXiv:1711.05101. Biases and layer norms are not decayed.
        """
        excess = self._excess(gradients)
        matrices = [name for name, weight in self._weights.items() if weight.ndim > 1]
        vectors = [name for name, weight in self._weights.items() if weight.ndim == 1]
        for names, decay in ((matrices, self._training.weight_decay), (vectors, 0.0)):
            adamw(
                [self._weights[name].detach() for name in names],
                [gradients[name] for name in names],
                [self._moments[f"m/{name}"] for name in names],
                [self._moments[f"v/{name}"] for name in names],
                [],
                # Of each tensor, how many updates came before.
                list(torch.full([len(names)], number - 1.0, device=self._device).unbind()),
                fused=True,
                grad_scale=excess,
                amsgrad=False,
                beta1=BETA_1,
                beta2=BETA_2,
                lr=learning_rate,
                weight_decay=decay,
                eps=EPSILON,
                maximize=False,
            )


def granule_texts(
    granule: Granule, sides: Sequence[SideName], seed: int, epoch: int
) -> list[Texts]:
    """The sides of a granule that the objective embeds.

    Args:
        granule: The granule.
        sides: Their names.
        seed: Of the run.
        epoch: Of the step.
    """
    return [
        Texts(
            granule.sides[name].token_ids,
            granule.sides[name].lengths,
            noise_seed(seed, epoch, granule.number, site),
        )
        for site, name in enumerate(sides)
    ]


def granule_scores(granule: Granule, device: torch.device) -> torch.Tensor:
    """fp32 [examples]: the similarities that a corpus gives; zeros where it gives none."""
    scores = np.zeros(granule.examples) if granule.scores is None else granule.scores
    return to_device(scores.astype(np.float32), device)


def _assign(tensors: Mapping[str, torch.Tensor], values: Weights) -> None:
    for name, value in values.items():
        tensors[name].detach().copy_(torch.from_numpy(value))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in the host's memory."""
    array: np.ndarray = tensor.detach().to("cpu", copy=True).numpy()
    return array
