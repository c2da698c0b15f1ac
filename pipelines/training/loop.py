"""The step loop of synchronous runs, and the common parts of all loops. Runs on an executor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pipelines.catalog import STEPPERS
from pipelines.quiet import quiet_import
from pipelines.runs.attempts import fenced
from pipelines.runs.checkpoint import CheckpointWriter, load_checkpoint
from pipelines.runs.model_choice import is_to_end
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepRecord
from pipelines.training.collectives.base import Collectives, SingleProcess, check_agreement
from pipelines.training.control.reporter import Reporter
from pipelines.training.steppers.base import FILE_FEEDS, Stepper, StepperFactory, StepWork


def ends_early(run: TrainingRun, collectives: Collectives, step: int) -> bool:
    """Return whether the run ends before this step; all workers ask, after each step.

    When evaluations stop improving, the driver leaves a request in the run folder for the workers
    of this run or a resumed one. They look for it at checkpoints.
    """
    if run.config.training.patience is None or not run.is_checkpointed(step):
        return False
    # Only rank 0 looks: the file may appear between the looks of two workers.
    return _any_votes(collectives, collectives.rank == 0 and is_to_end(run.run_folder))


def _any_votes(collectives: Collectives, vote: bool) -> bool:
    """Return whether any worker votes yes; all of them call this at once."""
    votes = collectives.all_gather(np.array([vote], dtype=np.int64))
    return bool(np.asarray(votes).any())


class ExtraCheckpoints:
    """Decides on checkpoints between the planned steps.

    One is due some minutes after the last checkpoint, and before the loss of a machine.

    Args:
        reporter: Receives the driver's requests for a checkpoint.
        together: Joins the workers of a sharded state: they write checkpoints together, and so
            agree after each step. None if the first worker writes alone.
    """

    def __init__(
        self, task: WorkerTask, reporter: Reporter, together: Collectives | None = None
    ) -> None:
        minutes = task.run.config.training.checkpoint_minutes
        self._seconds = None if minutes is None else 60 * minutes
        self._reporter = reporter
        self._together = together
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        """Return whether a checkpoint is due after the step just made; all workers ask."""
        vote = self._reporter.save_asked.is_set() or self._is_late()
        return vote if self._together is None else _any_votes(self._together, vote)

    def saved(self) -> None:
        """Note the writing of a checkpoint, for any reason."""
        self._saved = time.monotonic()
        self._reporter.save_asked.clear()

    def _is_late(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._saved >= self._seconds


def train_worker(
    task: WorkerTask,
    stepper_factory: StepperFactory[Stepper],
    collectives: Collectives,
    feed: Iterator[StepWork],
    reporter: Reporter,
) -> None:
    """Train in step with the other workers, from the first step to the last."""
    steps = SharedSteps(task, stepper_factory, collectives, feed, reporter)
    for work in steps:
        steps.make(work)


class SharedSteps:
    """A worker's part of each step of a synchronous run; iterating gives the work of each.

    For libraries with a loop of their own: they pass each work to :meth:`make` before they ask for
    the next. The arguments are those of :func:`train_worker`.
    """

    def __init__(
        self,
        task: WorkerTask,
        stepper_factory: StepperFactory[Stepper],
        collectives: Collectives,
        feed: Iterator[StepWork],
        reporter: Reporter,
    ) -> None:
        self._task = task
        self._collectives = collectives
        self._feed = feed
        self._reporter = reporter
        # A sharded stepper reads only its part of the state.
        lazily = getattr(stepper_factory, "sharded", False)
        checkpoint = load_checkpoint(task.run.run_folder, task.run.first_step, lazily=lazily)
        self._stepper = stepper_factory(task, checkpoint, collectives)
        together = self._stepper.sharded and collectives.workers > 1
        run = task.run
        self._checkpoints = CheckpointWriter(run.run_folder, run.config.training, run.attempt)
        self._has_ended = False
        self._extra = ExtraCheckpoints(task, reporter, collectives if together else None)
        reporter.ready()
        self._timer = StepTimer(reporter, self._stepper.precision)

    def __iter__(self) -> Iterator[StepWork]:
        for work in self._timer.timed(self._feed):
            yield work
            if self._has_ended:
                break
        with self._reporter.waiting():
            self._checkpoints.wait()

    def make(self, work: StepWork) -> float:
        """Make a step and any due checkpoint, with the other workers; return the loss over all.

        Raises:
            FloatingPointError: See :func:`check_finite`.
        """
        run, stepper = self._task.run, self._stepper
        rate = run.learning_rate(work.index)
        with self._timer.step(stepper):
            loss = stepper.step(work, rate)
        check_finite(work.index, loss)
        self._timer.step_done(work, loss, rate, stepper.gradient_norm)
        done = work.index + 1
        if work.index == run.first_step and self._collectives.workers > 1 and not stepper.sharded:
            check_agreement(stepper.checkpoint(done), self._collectives)
        # Asked at each step, since workers may have to agree.
        is_due = self._extra.is_due()
        if is_due or run.is_checkpointed(done):
            # The driver restarts only from a checkpoint with all its steps reported, so the reports
            # must not arrive later than the checkpoint.
            self._reporter.send_records()
            self._save(done)
            self._extra.saved()
        self._has_ended = ends_early(run, self._collectives, done)
        return loss

    def _save(self, step: int) -> None:
        """Write the state before a step.

        Rank 0 writes; if the state is sharded, the others send it their part of each array.
        """
        if self._task.rank != 0 and not self._stepper.sharded:
            return
        checkpoint = self._stepper.checkpoint(step)
        if self._task.rank == 0:
            self._checkpoints.save(checkpoint, self._reporter.saved)
        else:
            checkpoint.pass_through()


def check_finite(step: int, loss: float) -> None:
    """End a diverged run: an infinite or NaN loss never recovers.

    Raises:
        FloatingPointError: The loss is infinite or NaN.
    """
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss of step {step} is {loss}. Lower training.learning_rate."
        )


class StepTimer:
    """Measures the steps of a worker, and reports each to the driver.

    Time after a step, such as for its checkpoint, counts to the next step.
    """

    def __init__(self, reporter: Reporter, precision: str | None = None) -> None:
        self._reporter = reporter
        self._precision = precision
        self._began = self._ended = time.monotonic()
        self._cpu_ended = time.process_time()
        self._data_seconds = 0.0
        self._compute_seconds = 0.0
        self._communication_seconds: float | None = 0.0

    def timed(self, feed: Iterator[StepWork]) -> Iterator[StepWork]:
        """Pass the feed on, and measure the wait for each step's granules."""
        while True:
            asked = time.monotonic()
            work = next(feed, None)
            self._data_seconds = time.monotonic() - asked
            if work is None:
                return
            yield work

    @contextmanager
    def step(self, stepper: Stepper) -> Iterator[None]:
        """Measure a stepper's step as arithmetic, less the time of its exchange."""
        before = stepper.exchange_seconds
        with self.arithmetic():
            yield
        after = stepper.exchange_seconds
        if before is None or after is None or self._communication_seconds is None:
            self._communication_seconds = None
        else:
            self._communication_seconds += after - before

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Measure the worker's computation."""
        began = time.monotonic()
        yield
        self._compute_seconds += time.monotonic() - began

    @contextmanager
    def communication(self) -> Iterator[None]:
        """Measure the worker's exchanges, including the wait for others."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self._compute_seconds += seconds
        if self._communication_seconds is not None:
            self._communication_seconds += seconds

    def step_done(
        self,
        work: StepWork,
        loss: float,
        rate: float,
        gradient_norm: float | None,
        staleness: int | None = None,
    ) -> None:
        """Report a step."""
        now, cpu = time.monotonic(), time.process_time()
        self._reporter.step_done(
            StepRecord(
                step=work.index,
                epoch=work.epoch,
                loss=loss,
                learning_rate=rate,
                gradient_norm=gradient_norm,
                granules=len(work.granules),
                tokens=sum(granule.tokens for granule in work.granules),
                padded_tokens=sum(granule.padded_tokens for granule in work.granules),
                data_seconds=self._data_seconds,
                seconds=now - self._began,
                staleness=staleness,
                compute_seconds=self._compute_seconds,
                communication_seconds=self._communication_seconds,
                step_seconds=now - self._ended,
                cpu_seconds=cpu - self._cpu_ended,
                precision=self._precision,
                source=work.source,
            )
        )
        self._ended, self._cpu_ended = now, cpu
        self._compute_seconds, self._communication_seconds = 0.0, 0.0


# `Any`, since each loop has another kind of stepper and of exchange between workers.
Loop = Callable[[WorkerTask, StepperFactory[Any], Any, Iterator[StepWork], Reporter], None]


def run_worker(
    task: WorkerTask,
    make_collectives: Callable[[], Any] = SingleProcess,
    feed: Callable[[], Iterator[StepWork]] | None = None,
    loop: Loop = train_worker,
    stepper: str | None = None,
    means_peer_lost: Callable[[Exception], bool] = lambda error: False,
) -> bool:
    """Train one worker's share, connected to the driver's monitor. Runs on an executor.

    Errors go to the driver; it decides about the run. The reporter ends this process when the
    driver cancels the run.

    Args:
        make_collectives: Makes the loop's exchange between workers. Called after the connection to
            the driver, since starting a cluster may fail or wait.
        feed: The worker's steps; by default from the lane files.
        loop: The rule to join the workers' steps into one run.
        stepper: A name of ``STEPPERS``; by default the framework's.
        means_peer_lost: Whether an error is the loss of another worker.

    Returns:
        Whether the share was finished; if not, the driver knows why.

    Raises:
        OSError: The driver cannot be reached.
    """
    training = task.run.config.training
    with fenced(task.run.run_folder, task.run.attempt), Reporter(task) as reporter:
        try:
            with quiet_import():
                factory: StepperFactory[Any] = STEPPERS.load(stepper or training.framework)
            # First, since frameworks fix their threads with their first operation.
            factory.prepare_process(training)
            collectives = make_collectives()
            steps = feed() if feed is not None else FILE_FEEDS[training.feed](task)
            loop(task, factory, collectives, steps, reporter)
            reporter.done()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver raises it
            reporter.failed(error, peer_lost=means_peer_lost(error))
            return False
    return True
