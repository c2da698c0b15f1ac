"""The step loop: the same for every engine and every framework. Runs on an executor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Protocol

from pipelines.settings import TrainingSettings
from pipelines.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.training.exchange import Exchange
from pipelines.training.feed import StepWork
from pipelines.training.reporter import Reporter
from pipelines.training.run import TrainingOutcome, WorkerTask
from pipelines.training.schedule import learning_rate


class Stepper(Protocol):
    """A framework's side of training: weights, gradients and the optimiser."""

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        ...

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays."""
        ...


class StepperFactory(Protocol):
    """A class of steppers."""

    def __call__(self, task: WorkerTask, checkpoint: Checkpoint, exchange: Exchange) -> Stepper:
        """Makes the framework's side from a checkpoint."""
        ...

    def prepare_process(self, settings: TrainingSettings) -> None:
        """Called once, before the framework computes anything in this process."""
        ...


def train_worker(
    task: WorkerTask,
    stepper_factory: StepperFactory,
    exchange: Exchange,
    feed: Iterator[StepWork],
    reporter: Reporter,
) -> TrainingOutcome:
    """Trains from the run's first step to its last. Runs on an executor.

    Args:
        task: The worker's task.
        stepper_factory: Makes the framework's side from a checkpoint.
        exchange: The engine's way to move numbers between workers.
        feed: The worker's granules, step by step.
        reporter: The line to the driver.
    """
    run, training = task.run, task.run.config.training
    stepper = stepper_factory(task, load_checkpoint(run.run_folder, run.first_step), exchange)
    reporter.ready()
    meter = _Meter(task, reporter)
    for work in meter.timed(feed):
        rate = learning_rate(work.index, run.last_step, training)
        loss = stepper.step(work, rate)
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss of step {work.index} is {loss}: lower training.learning_rate"
            )
        meter.step_done(work, loss, rate)
        done = work.index + 1
        if task.rank == 0 and (done % training.checkpoint_every == 0 or done == run.last_step):
            save_checkpoint(run.run_folder, stepper.checkpoint(done), training.keep_checkpoints)
    outcome = meter.outcome()
    reporter.done(outcome)
    return outcome


class _Meter:
    """Counts what was done, and sends a metrics line every ``log_every`` steps from rank 0.

    Its figures are those of the steps since the line before.
    """

    def __init__(self, task: WorkerTask, reporter: Reporter) -> None:
        self._task = task
        self._reporter = reporter
        self._began = self._window_began = time.monotonic()
        self._settled: tuple[float, int] | None = None
        self._losses: list[float] = []
        self._waited = 0.0
        self._tokens = self._slots = self._window_steps = 0

    def timed(self, feed: Iterator[StepWork]) -> Iterator[StepWork]:
        """Passes the feed on, and measures how long each step's granules took to come."""
        while True:
            asked = time.monotonic()
            work = next(feed, None)
            self._waited += time.monotonic() - asked
            if work is None:
                return
            yield work

    def step_done(self, work: StepWork, loss: float, rate: float) -> None:
        self._losses.append(loss)
        self._window_steps += 1
        self._tokens += sum(granule.tokens for granule in work.granules)
        self._slots += sum(granule.slots for granule in work.granules)
        self._reporter.step_done(work.index)
        is_last = work.index + 1 == self._task.run.last_step
        if (work.index + 1) % self._task.run.config.training.log_every == 0 or is_last:
            self._log(work, rate)

    def outcome(self) -> TrainingOutcome:
        now = time.monotonic()
        since, steps_before = self._settled or (self._began, 0)
        steps = len(self._losses)
        examples = self._task.run.examples_per_step
        return TrainingOutcome(
            steps=steps,
            examples=steps * examples,
            seconds=now - self._began,
            examples_per_second=(steps - steps_before) * examples / max(now - since, 1e-9)
            if steps > steps_before
            else steps * examples / max(now - self._began, 1e-9),
            losses=tuple(self._losses),
        )

    def _log(self, work: StepWork, rate: float) -> None:
        now = time.monotonic()
        window = max(now - self._window_began, 1e-9)
        # Tokens are counted here and scaled up: workers' granules are of one bucket.
        tokens = self._tokens * self._task.workers
        if self._task.rank == 0:
            self._reporter.metrics(
                {
                    "step": work.index + 1,
                    "epoch": work.epoch,
                    "loss": sum(self._losses[-self._window_steps :]) / self._window_steps,
                    "learning_rate": rate,
                    "examples_per_second": self._window_steps
                    * self._task.run.examples_per_step
                    / window,
                    "tokens_per_second": tokens / window,
                    "padding": 1 - self._tokens / max(self._slots, 1),
                    "data_wait": self._waited / window,
                    "seconds": now - self._began,
                }
            )
        if self._settled is None:
            self._settled = (now, len(self._losses))
        self._window_began, self._waited = now, 0.0
        self._tokens = self._slots = self._window_steps = 0
