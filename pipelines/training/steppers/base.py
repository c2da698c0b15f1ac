"""A framework's side of training: what each step loop needs of it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint
from pipelines.runs.run import WorkerTask
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives
from pipelines.training.feed import StepWork


class Stepper(Protocol):
    """Weights, gradients and the optimiser, for the synchronous loop."""

    @property
    def sharded(self) -> bool:
        """Whether a worker holds a part of the state only.

        The workers then make a checkpoint together: each array is gathered when it is read, which
        all do in the same order, see :meth:`pipelines.runs.checkpoint.Checkpoint.pass_through`.
        """
        ...

    @property
    def precision(self) -> str:
        """Of the matrix products, ``fp32`` or ``bf16``."""
        ...

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds that its steps have spent in collectives so far, waiting for others included.

        None where that cannot be separated from arithmetic: a library moves parameters while it
        computes, or a GPU only queues what it is given, and is not stopped to be timed.
        """
        ...

    @property
    def gradient_norm(self) -> float | None:
        """Of the last step's gradient over all workers and weights, before it was clipped."""
        ...

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        ...

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays; of all workers together if ``sharded``."""
        ...


class LoadableStepper(Stepper, Protocol):
    """One whose state can be replaced, for the loop of averaging rounds."""

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes another state, of the same shape."""
        ...


class GradientStepper(Protocol):
    """One that computes at weights held elsewhere, for the asynchronous loop."""

    @property
    def precision(self) -> str:
        """Of the matrix products, ``fp32`` or ``bf16``."""
        ...

    @property
    def gradient_norm(self) -> float | None:
        """Of the last gradient, before it was clipped."""
        ...

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Loss and clipped gradients of this worker's granules at given weights.

        Leaves the stepper with these weights; its optimiser has no part in it.
        """
        ...


Stepper_co = TypeVar("Stepper_co", covariant=True)


class StepperFactory(Protocol[Stepper_co]):
    """A class of steppers."""

    def __call__(
        self, task: WorkerTask, checkpoint: Checkpoint, collectives: Collectives
    ) -> Stepper_co:
        """Makes the framework's side from a checkpoint."""
        ...

    def prepare_process(self, settings: TrainingSettings) -> None:
        """Called once, before the framework computes anything in this process."""
        ...
