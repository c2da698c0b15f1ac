"""The step loops of asynchronous and local-update training. Run on executors.

**Asynchronous**: pull parameters, compute, push a gradient. One worker computes each step, and a
parameter server makes its update. So a run makes the same updates as a synchronous one, of the same
granules and at the same learning rates, on any number of workers. Only the parameters under a
gradient may be older. ``training.max_staleness`` bounds their age; with 0 each step waits for all
before it, and the run is the synchronous one.

**In rounds**: every worker makes its part of each step by itself, with a separate optimiser. After
``training.round_steps`` steps the workers average their changes to weights and optimiser, and all
go on from the mean. Rounds end at every checkpoint too.

Source of the bound: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
Parameter Server", NeurIPS 2013. Of the rounds: McMahan et al., "Communication-Efficient Learning of
Deep Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629; averaging the moments as
well, Yu, Jin and Yang, "On the Linear Speedup Analysis of Communication Efficient Momentum SGD",
ICML 2019, arXiv:1905.03817.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint, CheckpointWriter, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.control.reporter import Reporter
from pipelines.training.loop import ExtraCheckpoints, StepTimer, check_finite
from pipelines.training.steppers.base import (
    GradientStepper,
    LoadableStepper,
    StepperFactory,
    StepWork,
)


class Rounds(Protocol):
    """A worker's access to the averaged state: ``weights/NAME``, ``m/NAME``, ``v/NAME``."""

    def pull(self, step: int) -> Weights:
        """Return the state before the first step of a round; wait for the pushes of all workers."""
        ...

    def push(self, step: int, deltas: Weights, granules: int) -> None:
        """Add this worker's difference up to a step (before minus after), weighted by granules."""
        ...


def round_ends(run: TrainingRun) -> Iterator[int]:
    """Yield the first step after each round of a run; they follow from the settings."""
    training = run.config.training
    for step in range(run.first_step + 1, run.last_step + 1):
        if step % training.round_steps == 0 or run.is_checkpointed(step):
            yield step


def train_in_rounds(
    task: WorkerTask,
    stepper_factory: StepperFactory[LoadableStepper],
    rounds: Rounds,
    feed: Iterator[StepWork],
    reporter: Reporter,
) -> None:
    """Train this worker's part of every step, from the first to the last."""
    run, training = task.run, task.run.config.training
    first = load_checkpoint(run.run_folder, run.first_step)
    # Without an exchange in a step: the workers' changes meet at the end of a round.
    stepper = stepper_factory(task, first, SingleProcess())
    reporter.ready()
    timer = StepTimer(reporter, stepper.precision)
    extra = ExtraCheckpoints(task, reporter)
    checkpoints = CheckpointWriter(run.run_folder, training, run.attempt)
    steps = timer.timed(feed)
    with timer.communication():
        before = rounds.pull(run.first_step)
    for end in round_ends(run):
        granules = 0
        for work in steps:
            rate = run.learning_rate(work.index)
            with timer.arithmetic():
                loss = stepper.step(work, rate)
            check_finite(work.index, loss)
            timer.step_done(work, loss, rate, stepper.gradient_norm)
            granules += len(work.granules)
            if work.index + 1 == end:
                break
        after = state_of(stepper.checkpoint(end))
        deltas = {name: before[name] - after[name] for name in after}
        with timer.communication():
            rounds.push(end, deltas, granules)
        # The driver restarts only from a checkpoint with all its steps reported.
        reporter.send_records()
        with reporter.waiting(), timer.communication():
            before = rounds.pull(end)
        mean = checkpoint_of(before, end, first)
        stepper.load(mean)
        if task.rank == 0 and (run.is_checkpointed(end) or extra.is_due()):
            checkpoints.save(mean, reporter.saved)
            extra.saved()
    with reporter.waiting():
        checkpoints.wait()


def state_of(checkpoint: Checkpoint) -> Weights:
    """Return weights and optimiser in one dict, in a fixed order."""
    weights = checkpoint.weights
    state = {f"weights/{name}": value for name, value in weights.items()}
    for kind in ("m", "v"):
        for name, value in weights.items():
            moment = checkpoint.moments.get(f"{kind}/{name}")
            state[f"{kind}/{name}"] = np.zeros_like(value) if moment is None else moment
    return state


def checkpoint_of(state: Weights, step: int, like: Checkpoint) -> Checkpoint:
    """Return the inverse of :func:`state_of`."""
    weights = {name: state[f"weights/{name}"] for name in like.weights}
    moments = {f"{kind}/{name}": state[f"{kind}/{name}"] for kind in "mv" for name in weights}
    return Checkpoint(step=step, spec=like.spec, weights=weights, moments=moments)


# Pauses double: short waits end soon, and long ones send few requests.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run on the parameter servers.

    All steps before `applied` have been applied; `saved` is the newest step with a saved state.
    """

    applied: int
    saved: int


class Parameters(Protocol):
    """A worker's access to the parameters on a server.

    Its calls raise the transport's errors; they may block no longer than a step may take.
    """

    def pull(self) -> tuple[Weights, int]:
        """Return the current weights, and the number of their updates."""
        ...

    def push(self, step: int, gradients: Weights, learning_rate: float) -> int:
        """Request an update; return the number of updates so far, this one included."""
        ...

    def progress(self) -> Progress:
        """Return the progress of the run."""
        ...

    def state(self) -> tuple[Weights, Weights]:
        """Return the weights, and the optimiser's arrays as in a checkpoint."""
        ...

    def mark_saved(self, step: int) -> None:
        """Let the other workers go on from a step with a saved state."""
        ...


def train_asynchronously(
    task: WorkerTask,
    stepper_factory: StepperFactory[GradientStepper],
    parameters: Parameters,
    feed: Iterator[StepWork],
    reporter: Reporter,
) -> None:
    """Make this worker's steps, from the first to the last."""
    run = task.run
    checkpoint = load_checkpoint(run.run_folder, run.first_step)
    stepper = stepper_factory(task, checkpoint, SingleProcess())
    reporter.ready()
    timer = StepTimer(reporter, stepper.precision)
    barrier = _StalenessBarrier(task, parameters, checkpoint, reporter, timer)
    for work in timer.timed(feed):
        barrier.wait_for(work.index)
        rate = run.learning_rate(work.index)
        loss, staleness = _update(stepper, parameters, work, rate, timer)
        timer.step_done(work, loss, rate, stepper.gradient_norm, staleness)
    barrier.finish()


def oldest_needed(run: TrainingRun, step: int) -> int:
    """Return the step whose predecessors must all be applied before `step` begins.

    This limits the staleness. A step after a checkpoint also waits for all steps before it, so the
    saved state holds exactly these steps.
    """
    fence, bound = _fence(run, step), run.config.training.max_staleness
    return fence if bound is None else max(fence, step - bound)


def _fence(run: TrainingRun, step: int) -> int:
    """Return the newest checkpoint at or before a step."""
    every = run.config.training.checkpoint_every
    return max(run.first_step, step // every * every)


def _update(
    stepper: GradientStepper,
    parameters: Parameters,
    work: StepWork,
    rate: float,
    timer: StepTimer,
) -> tuple[float, int]:
    """Make an update; return its loss, and the number of other updates between pull and push."""
    with timer.communication():
        weights, pulled = parameters.pull()
    with timer.arithmetic():
        loss, gradients = stepper.gradients(work, weights)
    check_finite(work.index, loss)
    with timer.communication():
        pushed = parameters.push(work.index, gradients, rate)
    return loss, pushed - 1 - pulled


class _StalenessBarrier:
    """Holds a worker back before it gets too far ahead of the others.

    Rank 0 saves a checkpoint when it comes to its first step after it.
    """

    def __init__(
        self,
        task: WorkerTask,
        parameters: Parameters,
        checkpoint: Checkpoint,
        reporter: Reporter,
        timer: StepTimer,
    ) -> None:
        self._task = task
        self._reporter = reporter
        self._timer = timer
        self._parameters = parameters
        self._spec = checkpoint.spec
        self._known = Progress(applied=task.run.first_step, saved=task.run.first_step)

    def wait_for(self, step: int) -> None:
        """Wait until a step may begin."""
        run = self._task.run
        if self._task.rank == 0:
            self._save_up_to(_fence(run, step))
        self._await(saved=_fence(run, step), applied=oldest_needed(run, step))

    def finish(self) -> None:
        """Save the remaining checkpoints on rank 0, after all steps have been applied."""
        if self._task.rank == 0:
            self._save_up_to(self._task.run.last_step)

    def _save_up_to(self, last: int) -> None:
        """Save the checkpoints up to a step; no later step can have begun."""
        run = self._task.run
        # In order: workers wait at each fence until this rank has saved the state before it.
        between = filter(run.is_checkpointed, range(self._known.saved + 1, last))
        for step in (*between, last) if last > self._known.saved else ():
            self._await(applied=step)
            with self._timer.communication():
                weights, moments = self._parameters.state()
            saved = Checkpoint(step=step, spec=self._spec, weights=weights, moments=moments)
            training = run.config.training
            keep, spared = training.kept_checkpoints, training.averaged_steps(step)
            save_checkpoint(run.run_folder, saved, keep, spared, attempt=run.attempt)
            self._parameters.mark_saved(step)

    def _await(self, *, saved: int = 0, applied: int = 0) -> None:
        """Poll the servers for progress; time out after ``training.stall_seconds`` without any."""
        seconds = self._task.run.config.training.stall_seconds
        moved, pause = time.monotonic(), _FIRST_PAUSE
        while self._known.saved < saved or self._known.applied < applied:
            with self._reporter.waiting(), self._timer.communication():
                before, self._known = self._known, self._parameters.progress()
                if self._known != before:
                    moved, pause = time.monotonic(), _FIRST_PAUSE
                elif time.monotonic() - moved > seconds:
                    raise TimeoutError(
                        f"the workers made no step within {seconds} s (training.stall_seconds)."
                        f" This one waited for the steps before {applied} and the checkpoint"
                        f" before step {saved}."
                    )
                else:
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
