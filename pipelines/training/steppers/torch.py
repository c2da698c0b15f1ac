"""PyTorch's side of training: gradients of a granule, and AdamW. Runs on an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import normalize
from torch.optim.adamw import adamw

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed
from pipelines.losses.candidates import Picks
from pipelines.losses.loss import configured_loss, spans_steps
from pipelines.losses.targets import Targets, granule_targets
from pipelines.models.frameworks.torch import Encoder, configure_threads, embed, has_bf16, prepare
from pipelines.models.frameworks.torch_batch import to_device
from pipelines.models.weights import WORDS, Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives, TimedCollectives
from pipelines.training.devices import with_precision, worker_device
from pipelines.training.feed import StepWork
from pipelines.training.steppers.adamw import BETA_1, BETA_2, EPSILON
from pipelines.training.steppers.base import GradientStepper, LoadableStepper, StepperFactory
from pipelines.training.steppers.step_negatives import gathered_candidates, pulls_on_embeddings


class Texts(NamedTuple):
    """One side of a granule; see :func:`pipelines.models.frameworks.torch.forward`."""

    token_ids: np.ndarray
    lengths: np.ndarray
    seed: tuple[int, int]


class TorchRun:
    """What all steppers of PyTorch hold of a run: its loss, and how it is computed here.

    Args:
        checkpoint: The state to begin with.
        collectives: Between the workers.
    """

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        config = task.run.config
        self._spec = checkpoint.spec
        self._collectives = collectives
        self._objective = config.objective
        self._loss = configured_loss(config.objective, "torch")
        self._sides = task.run.sides
        self._across_granules = spans_steps(config.objective)
        self._device = worker_device()
        bf16 = has_bf16(self._device)
        self._training = with_precision(config.training, collectives, has_bf16=bf16)
        self.precision = self._training.precision

    @staticmethod
    def prepare_process(settings: TrainingSettings) -> None:
        """Gives PyTorch its threads."""
        configure_threads(settings.threads)


class TorchStepper(TorchRun):
    """Makes optimiser updates; see :mod:`pipelines.training.steppers.base`.

    Weights and moments are plain tensors by name. Gradients come from ``backward``, which adds
    granule to granule in place.

    Args:
        checkpoint: The state to begin with.
        collectives: How gradients are averaged between workers.
    """

    sharded = False

    def __init__(self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives) -> None:
        super().__init__(task, checkpoint, collectives)
        self._timed = TimedCollectives(collectives)
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

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds in the exchange so far; None on a GPU, which only queues what it is given."""
        return None if self._device.type == "cuda" else self._timed.seconds

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        loss, gradients = self._loss_and_gradients(work)
        *means, mean_loss = self._timed.all_reduce_mean([*gradients.values(), loss])
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
        """Adds the gradients with each granule's own negatives, averaged over the granules."""
        losses = []
        for granule in work.granules:
            embeddings = self._embed_sides(self._inputs(granule, work.epoch))
            targets = granule_targets(self._objective, granule, self._sides)
            loss = self._loss(embeddings, on_device(targets, self._device))
            (loss / len(work.granules)).backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _across(self, work: StepWork) -> torch.Tensor:
        """Adds the gradients with the negatives of the whole step, one granule in memory.

        Embeddings without a graph; the loss's gradient on them, see :mod:`.step_negatives`; then
        each granule once more, pulling its part of that gradient through. The last granule keeps
        its graph, which spares it the second pass.
        """
        candidates = gathered_candidates(
            work.granules,
            self._sides,
            self._timed,
            anchors=self._objective.compares_anchors,
            teacher=self._objective.uses_teacher,
        )
        *earlier, last = [self._inputs(granule, work.epoch) for granule in work.granules]
        with torch.no_grad():
            parts = [self._embed_sides(sides) for sides in earlier]
        with_graph = self._embed_sides(last)
        parts.append([side.detach() for side in with_graph])
        own = [torch.cat(side) for side in zip(*parts, strict=True)]
        parts.clear()
        gradients_of = partial(gradients_of_loss, self._loss)
        loss, pulls = pulls_on_embeddings(own, candidates, self._timed, gradients_of, torch.cat)
        sizes = [granule.examples for granule in work.granules]
        *earlier_pulls, last_pulls = zip(*(pull.split(sizes) for pull in pulls), strict=True)
        torch.autograd.backward(with_graph, last_pulls)
        for sides, own_pulls in zip(earlier, earlier_pulls, strict=True):
            torch.autograd.backward(self._embed_sides(sides), own_pulls)
        return loss

    def _inputs(self, granule: Granule, epoch: int) -> list[Texts]:
        return granule_texts(granule, self._sides, self._training.seed, epoch)

    def _embed_sides(self, sides: Sequence[Texts]) -> list[torch.Tensor]:
        """Of length 1. Side by side: what a CPU computes then stays in its cache more often."""
        encoder = self._encoder()
        return [
            normalize(self._embed(encoder, ids, lengths, seed=seed), dim=-1)
            for ids, lengths, seed in sides
        ]

    def _encoder(self) -> Encoder:
        return prepare(self._spec, self._weights, self._training.precision)

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


def granule_texts(granule: Granule, sides: Sequence[str], seed: int, epoch: int) -> list[Texts]:
    """The sides of a granule that the objective embeds.

    Args:
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


def on_device(targets: Targets, device: torch.device) -> Any:
    """What a loss compares with, as tensors."""
    if isinstance(targets, Picks):
        guide = [to_device(vectors, device) for vectors in targets.guide]
        return Picks(to_device(targets.own, device), to_device(targets.excluded, device), guide)
    if isinstance(targets, list):
        return [to_device(vectors, device) for vectors in targets]
    # A copy: the array may be a part of a lane file, which a tensor could write to.
    return to_device(np.array(targets), device)


def gradients_of_loss(
    loss_of: Callable[[Sequence[torch.Tensor], Any], torch.Tensor],
    sides: Sequence[torch.Tensor],
    picks: Picks,
    share: float,
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """A loss times a share, and its gradients; see :data:`.step_negatives.GradientsOf`."""
    leaves = [side.detach().requires_grad_() for side in sides]
    loss = loss_of(leaves, on_device(picks, sides[0].device)) * share
    return loss.detach(), torch.autograd.grad(loss, leaves)


def _assign(tensors: Mapping[str, torch.Tensor], values: Weights) -> None:
    for name, value in values.items():
        tensors[name].detach().copy_(torch.from_numpy(value))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy in the host's memory."""
    array: np.ndarray = tensor.detach().to("cpu", copy=True).numpy()
    return array


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_rounds: StepperFactory[LoadableStepper] = TorchStepper
    _for_gradients: StepperFactory[GradientStepper] = TorchStepper
