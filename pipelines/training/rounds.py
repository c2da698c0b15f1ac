"""The step loop of averaging rounds: some steps alone, then the mean of all workers' states.

Every worker makes its part of each step by itself, with an optimiser of its own. After
``training.round_steps`` steps the differences that the workers have made to weights and
optimiser are averaged, and all go on from the mean. Rounds end at every checkpoint too.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
Data", AISTATS 2017, arXiv:1602.05629; averaging the moments as well, Yu, Jin and Yang, "On the
Linear Speedup Analysis of Communication Efficient Momentum SGD", ICML 2019, arXiv:1905.03817.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from pipelines.models.weights import Weights
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint
from pipelines.runs.checkpoint_writer import CheckpointWriter
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.control.reporter import Reporter
from pipelines.training.extra_checkpoints import ExtraCheckpoints
from pipelines.training.feed import StepWork
from pipelines.training.loop import StepTimer, check_finite
from pipelines.training.steppers.base import LoadableStepper, StepperFactory


class Rounds(Protocol):
    """A worker's access to the state that is averaged: ``weights/NAME``, ``m/NAME``, ``v/NAME``."""

    def pull(self, step: int) -> Weights:
        """The state before a step that begins a round; waits until all have added to it."""
        ...

    def push(self, step: int, deltas: Weights, granules: int) -> None:
        """Adds what was subtracted from the state up to a step, by how many granules."""
        ...


def round_ends(run: TrainingRun) -> Iterator[int]:
    """The step before which each round of a run ends; they follow from the settings alone."""
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
    """Trains this worker's part of every step, from first to last. Runs on an executor.

    Args:
        stepper_factory: Makes the framework's side from a checkpoint.
        rounds: Access to the averaged state.
        feed: The worker's granules, step by step.
        reporter: The connection to the driver.
    """
    run, training = task.run, task.run.config.training
    first = load_checkpoint(run.run_folder, run.first_step)
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
        # The driver goes on from no checkpoint of steps that it has not heard of.
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
    """Weights and optimiser in one dict, in an order that is always the same."""
    weights = checkpoint.weights
    state = {f"weights/{name}": value for name, value in weights.items()}
    for kind in ("m", "v"):
        for name, value in weights.items():
            moment = checkpoint.moments.get(f"{kind}/{name}")
            state[f"{kind}/{name}"] = np.zeros_like(value) if moment is None else moment
    return state


def checkpoint_of(state: Weights, step: int, like: Checkpoint) -> Checkpoint:
    """The inverse of :func:`state_of`."""
    weights = {name: state[f"weights/{name}"] for name in like.weights}
    moments = {f"{kind}/{name}": state[f"{kind}/{name}"] for kind in "mv" for name in weights}
    return Checkpoint(step=step, spec=like.spec, weights=weights, moments=moments)
