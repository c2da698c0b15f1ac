"""The step loop of synchronous runs, and what all loops share. Runs on an executor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pipelines.encoder.weights import Weights
from pipelines.settings import TrainingSettings
from pipelines.training.agreement import check_agreement
from pipelines.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.training.exchange import Exchange
from pipelines.training.feed import StepWork
from pipelines.training.ledger import StepRecord
from pipelines.training.reporter import Reporter
from pipelines.training.run import WorkerTask
from pipelines.training.schedule import learning_rate


class Stepper(Protocol):
    """A framework's side of training: weights, gradients and the optimiser.

    Attributes:
        sharded: Whether a worker holds a part of the state only. The workers then make a
            checkpoint together, and rank 0 gets its arrays.
    """

    sharded: bool

    @property
    def exchange_seconds(self) -> float | None:
        """Seconds that its steps have spent in the exchange so far, waiting for others included.

        None where that cannot be told from arithmetic: a library moves parameters while it
        computes, or a GPU only queues what it is given, and is not stopped to be timed.
        """
        ...

    def step(self, work: StepWork, learning_rate: float) -> float:
        """Makes one update from this worker's granules; returns the loss over all workers."""
        ...

    def gradients(self, work: StepWork, weights: Weights) -> tuple[float, Weights]:
        """Loss and clipped gradients of this worker's granules at given weights.

        Leaves the stepper with these weights; its optimiser has no part in it.
        """
        ...

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes another state, of the same shape."""
        ...

    def checkpoint(self, step: int) -> Checkpoint:
        """The state before a step, as numpy arrays; a collective operation if ``sharded``."""
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
) -> None:
    """Trains in step with the other workers, from first to last. Runs on an executor.

    Args:
        task: The worker's task.
        stepper_factory: Makes the framework's side from a checkpoint.
        exchange: The engine's way to move numbers between workers.
        feed: The worker's granules, step by step.
        reporter: The line to the driver.
    """
    steps = SharedSteps(task, stepper_factory, exchange, feed, reporter)
    for work in steps:
        steps.make(work)


class SharedSteps:
    """A worker's part of each step of a synchronous run; iterating gives the work of each.

    For libraries that have a loop of their own: whoever iterates passes each work to :meth:`make`
    before asking for the next.

    Args:
        task: See :func:`train_worker`.
        stepper_factory: See :func:`train_worker`.
        exchange: See :func:`train_worker`.
        feed: See :func:`train_worker`.
        reporter: See :func:`train_worker`.
    """

    def __init__(
        self,
        task: WorkerTask,
        stepper_factory: StepperFactory,
        exchange: Exchange,
        feed: Iterator[StepWork],
        reporter: Reporter,
    ) -> None:
        self._task = task
        self._exchange = exchange
        self._feed = feed
        self._reporter = reporter
        checkpoint = load_checkpoint(task.run.run_folder, task.run.first_step)
        self._stepper = stepper_factory(task, checkpoint, exchange)
        reporter.ready()
        self._meter = Meter(reporter)

    def __iter__(self) -> Iterator[StepWork]:
        return self._meter.timed(self._feed)

    def make(self, work: StepWork) -> float:
        """Makes a step with the other workers, and writes its checkpoint if there is to be one.

        Returns:
            The loss over all workers.

        Raises:
            FloatingPointError: See :func:`check_finite`.
        """
        run, stepper = self._task.run, self._stepper
        rate = learning_rate(work.index, run.last_step, run.config.training)
        with self._meter.step(stepper):
            loss = stepper.step(work, rate)
        check_finite(work.index, loss)
        self._meter.step_done(work, loss, rate)
        done = work.index + 1
        if work.index == run.first_step and self._exchange.workers > 1 and not stepper.sharded:
            check_agreement(stepper.checkpoint(done), self._exchange)
        if run.is_checkpointed(done):
            # The driver goes on from no checkpoint whose steps it has not heard of.
            self._reporter.send_records()
            _save(stepper, self._task, done)
        return loss


def _save(stepper: Stepper, task: WorkerTask, step: int) -> None:
    """Writes the state before a step: rank 0 does, and the others have a part in it if sharded."""
    if task.rank != 0 and not stepper.sharded:
        return
    checkpoint = stepper.checkpoint(step)
    if task.rank == 0:
        keep = task.run.config.training.keep_checkpoints
        save_checkpoint(task.run.run_folder, checkpoint, keep)


def check_finite(step: int, loss: float) -> None:
    """Ends a run whose numbers have left the range of the machine.

    Raises:
        FloatingPointError: The loss is infinite or no number.
    """
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss of step {step} is {loss}: lower training.learning_rate")


class Meter:
    """Measures a worker's steps, and tells the driver of each.

    What happens after a step, such as writing its checkpoint, is time of the worker's next one.

    Args:
        reporter: The line to the driver.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._began = self._ended = time.monotonic()
        self._waited = 0.0
        self._worked = 0.0
        self._communicated: float | None = 0.0

    def timed(self, feed: Iterator[StepWork]) -> Iterator[StepWork]:
        """Passes the feed on, and measures how long each step's granules took to come."""
        while True:
            asked = time.monotonic()
            work = next(feed, None)
            self._waited = time.monotonic() - asked
            if work is None:
                return
            yield work

    @contextmanager
    def step(self, stepper: Stepper) -> Iterator[None]:
        """While a stepper makes a step: arithmetic, but for what it spends in its exchange."""
        before = stepper.exchange_seconds
        with self.arithmetic():
            yield
        after = stepper.exchange_seconds
        if before is None or after is None or self._communicated is None:
            self._communicated = None
        else:
            self._communicated += after - before

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """While the worker computes."""
        began = time.monotonic()
        yield
        self._worked += time.monotonic() - began

    @contextmanager
    def communication(self) -> Iterator[None]:
        """While the worker moves numbers, or waits for what others do."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self._worked += seconds
        if self._communicated is not None:
            self._communicated += seconds

    def step_done(
        self, work: StepWork, loss: float, rate: float, staleness: int | None = None
    ) -> None:
        """Reports a step."""
        now = time.monotonic()
        self._reporter.step_done(
            StepRecord(
                step=work.index,
                epoch=work.epoch,
                loss=loss,
                learning_rate=rate,
                granules=len(work.granules),
                tokens=sum(granule.tokens for granule in work.granules),
                slots=sum(granule.slots for granule in work.granules),
                waited=self._waited,
                seconds=now - self._began,
                staleness=staleness,
                worked=self._worked,
                communicated=self._communicated,
                took=now - self._ended,
            )
        )
        self._ended, self._worked, self._communicated = now, 0.0, 0.0
