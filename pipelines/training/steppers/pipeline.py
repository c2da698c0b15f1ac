"""Training in which stages of the encoder stand one behind the other. Runs on executors.

By PyTorch's own schedules. The micro-batches are the granules of a replica: while a stage computes
one, the stages behind it compute those before. Where there are as many granules as stages, a stage
holds the activations of as many granules as there are stages from it on, and of all of them
otherwise. The library makes the buffers for all granules of a step at once.

Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
arXiv:2006.09503 (one forward, one backward); Huang et al., "GPipe", NeurIPS 2019,
arXiv:1811.06965.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from pipelines.models.adaptation import effective
from pipelines.models.architecture import form_of
from pipelines.models.frameworks.torch import PRECISIONS, finished
from pipelines.models.frameworks.torch_division import StageEncode, StageForm
from pipelines.models.frameworks.torch_sharding import Inputs
from pipelines.training.feed import StepWork
from pipelines.training.steppers.base import Stepper, StepperFactory
from pipelines.training.steppers.micro_batches import Batch, by_side, per_batch
from pipelines.training.steppers.model_parallel import ModelParallelStepper
from pipelines.training.steppers.objectives import Objective
from pipelines.training.steppers.step_negatives import pulls_on_embeddings
from pipelines.training.steppers.torch_inputs import device_inputs
from pipelines.training.steppers.torch_losses import gradients_of_loss, on_device, pulled_loss

LossOf = Callable[[list[torch.Tensor], int], torch.Tensor]
"""Takes the embeddings of the sides of a micro-batch, and its number."""


class PipelineStepper(ModelParallelStepper):
    """Makes updates of a stage, or of a member's part of it; see :class:`.base.Stepper`.

    The last stage compares the embeddings.
    """

    exchange_seconds: float | None = None

    def _divided(self, weights: Mapping[str, torch.Tensor]) -> StageEncode:
        form: StageForm = form_of(self._spec, "torch_division")
        return form(self._spec, weights, PRECISIONS[self._training.precision], self._part)

    @property
    def _is_last(self) -> bool:
        return self._place.stage == self._placement.stages - 1

    def _within(self, work: StepWork, objective: Objective) -> torch.Tensor:
        targets = [objective.targets(granule) for granule in work.granules]

        def loss_of(sides: list[torch.Tensor], number: int) -> torch.Tensor:
            loss = objective.loss(sides, on_device(targets[number], self._device))
            return loss / len(targets)

        return self._told(sum(self._run(self._micro_batches(work, objective), loss_of)))

    def _across(self, work: StepWork, objective: Objective) -> torch.Tensor:
        some = self._micro_batches(work, objective)
        with torch.no_grad():
            parts = self._run(some, None)
        if not self._is_last:
            self._run(some, _no_loss)
            return self._told(0.0)
        own = [torch.cat(side) for side in by_side(some, parts)]
        candidates = objective.candidates(work.granules, self._timed)
        gradients_of = partial(gradients_of_loss, objective.loss)
        loss, pulls = pulls_on_embeddings(own, candidates, self._timed, gradients_of, torch.cat)
        of_batches = per_batch(some, pulls)

        def pulled(sides: list[torch.Tensor], number: int) -> torch.Tensor:
            return pulled_loss(sides, of_batches[number])

        self._run(some, pulled)
        return self._told(loss)

    def _micro_batches(self, work: StepWork, objective: Objective) -> list[Batch]:
        """One of each granule, all of its sides."""
        epoch = work.noise_epoch
        return [self._batches(granule, objective, epoch)[0] for granule in work.granules]

    def _told(self, loss: Any) -> torch.Tensor:
        """The loss of the last stage, on all stages."""
        own = torch.zeros((), device=self._device)
        if self._is_last:
            own += loss.detach()
        return self._stages.add_up_in_place(own)

    def _run(self, some: Sequence[Batch], loss_of: LossOf | None) -> list[Any]:
        """Passes micro-batches through the stages, and gradients back, if there is a loss.

        Returns:
            On the last stage the losses of all, or the embeddings of their sides without a loss;
            nothing on the others.
        """
        weights = effective(self._weights, self._frozen, self._scale)
        finish = partial(finished, self._spec, weights) if self._is_last else None
        module = StageModule(
            partial(self._divided, weights),
            [device_inputs(one, self._spec, self._training, self._device) for one in some],
            finish,
            self._training.activation_checkpointing,
            sparse_words=True,
        )
        tokens = torch.empty(
            module.tokens, self._spec.hidden, device="meta", requires_grad=loss_of is not None
        )
        outputs = tokens
        if self._is_last:
            outputs = torch.empty(module.texts, self._spec.embedding_width, device="meta")
        numbers = torch.arange(len(some))
        first = self._place.stage == 0
        stage = PipelineStage(
            module,
            self._place.stage,
            self._placement.stages,
            self._device,
            input_args=numbers[:1] if first else tokens,
            output_args=outputs,
            group=self._stages.group,
        )
        schedule = Schedule1F1B if len(some) >= self._placement.stages else ScheduleGPipe
        loss = None if loss_of is None else module.loss_by(loss_of)
        losses: list[torch.Tensor] | None = None if loss_of is None else []
        schedule(stage, len(some), loss, scale_grads=False).step(
            *([numbers] if first else []),
            number=numbers,
            target=numbers,
            losses=losses,
            return_outputs=False,
        )
        return module.embeddings if losses is None else [one.detach() for one in losses]


class StageModule(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """A stage as PyTorch's pipelines take it, for the micro-batches of a step.

    Between stages states travel as a matrix [tokens, hidden] with the tokens of all sides, which
    has as many rows for each micro-batch as the one with the most tokens needs.

    Args:
        prepare: Makes the forward pass of the stage, for each micro-batch anew: the graph of what
            weights are cast to goes with the first gradient.
        inputs: Of each micro-batch, its sides.
        finish: Gives the embeddings of pooled states; of the last stage alone.
        checkpointed: Whether activations are computed again for their gradients.
        sparse_words: Makes the gradient of words a sparse tensor.

    Attributes:
        tokens: Rows of the matrix.
        texts: Of all sides of a micro-batch, as many in each.
        embeddings: Of each micro-batch so far, those of its sides, of length 1; on the last stage.
    """

    def __init__(
        self,
        prepare: Callable[[], StageEncode],
        inputs: Sequence[Sequence[Inputs]],
        finish: Callable[[torch.Tensor], torch.Tensor] | None,
        checkpointed: bool,
        *,
        sparse_words: bool,
    ) -> None:
        super().__init__()
        self._sparse_words = sparse_words
        self._prepare, self._inputs, self._finish = prepare, inputs, finish
        self._checkpointed = checkpointed
        self._counts = [[len(side.batch.token_ids) for side in sides] for sides in inputs]
        self.tokens = max(sum(counts) for counts in self._counts)
        self.texts = sum(side.batch.texts for side in inputs[0])
        self.embeddings: list[list[torch.Tensor]] = []

    def loss_by(self, loss_of: LossOf) -> Callable[..., torch.Tensor]:
        """The loss as a schedule takes it."""
        return lambda output, target: loss_of(self.embeddings[int(target)], int(target))

    def forward(self, states: torch.Tensor, *, number: torch.Tensor | int) -> torch.Tensor:
        """States for the next stage, or all embeddings.

        Args:
            states: Of the stage before; anything for the first stage.
            number: Of the micro-batch.
        """
        encode, sides = self._prepare(), self._inputs[int(number)]
        counts = self._counts[int(number)]
        if states.is_floating_point():
            parts = states[: sum(counts)].split(counts)
        else:
            parts = [
                encode.first_states(side.batch, side.masks, sparse_words=self._sparse_words)
                for side in sides
            ]
        after = [
            encode.run_layers(
                part, side.batch, side.masks, activation_checkpointing=self._checkpointed
            )
            for part, side in zip(parts, sides, strict=True)
        ]
        if self._finish is None:
            return functional.pad(torch.cat(after), (0, 0, 0, self.tokens - sum(counts)))
        pooled = [
            self._finish(encode.pooled(states, side.batch))
            for states, side in zip(after, sides, strict=True)
        ]
        self.embeddings.append([functional.normalize(one, dim=-1) for one in pooled])
        return torch.cat(self.embeddings[-1])


def _no_loss(sides: list[torch.Tensor], number: int) -> torch.Tensor:
    """Has stages before the last take part in backward passes."""
    raise AssertionError("the last stage has a loss of its own")


if TYPE_CHECKING:
    # mypy: the class has what the loops need.
    _for_steps: StepperFactory[Stepper] = PipelineStepper
