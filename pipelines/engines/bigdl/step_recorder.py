"""Turns dllib's reports of its steps into metrics lines and checkpoints. Runs on the driver."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.engines.bigdl.feeding import Sizes, StepRange
from pipelines.engines.bigdl.progress import StepTimes
from pipelines.engines.bigdl.states import States
from pipelines.models.frameworks.dllib import Graph
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.runs.step_metrics import StepMetrics, StepRecord
from pipelines.training.loop import check_finite

OnStep = Callable[[StepTimes], None]


class StepRecorder:
    """Enters the steps of a part into the step metrics, and keeps the checkpoints.

    Args:
        run: The whole run.
        states: Where the executors write the state.
        step_metrics: Of the run.
        on_step: Called with the times of each step.
    """

    def __init__(
        self,
        run: TrainingRun,
        graph: Graph,
        states: States,
        step_metrics: StepMetrics,
        on_step: OnStep,
    ) -> None:
        self._run = run
        self._graph = graph
        self._states = states
        self._step_metrics = step_metrics
        self._on_step = on_step
        self._data_seconds = 0.0

    def begin(self, part: StepRange, sizes: Sizes, data_seconds: float) -> None:
        """A part begins.

        Args:
            sizes: Of each step.
            data_seconds: Seconds that all workers have waited for its granules.
        """
        # From the first step of all on.
        self._step_metrics.begin(time.monotonic())
        self._part, self._sizes, self._data_seconds = part, sizes, data_seconds

    def enter(self, times: StepTimes) -> Checkpoint | None:
        """A step is done; gives the state after it if it is a checkpoint or the part's last.

        Raises:
            FloatingPointError: The loss is no number.
        """
        run, workers = self._run, self._states.workers
        step, now = self._part.first + times.steps - 1, time.monotonic()
        check_finite(step, times.loss)
        self._on_step(times)
        sizes = [self._sizes[step, rank] for rank in range(workers)]
        self._step_metrics.add(
            StepRecord(
                step=step,
                epoch=step // run.plan.steps_per_epoch,
                loss=times.loss,
                learning_rate=run.learning_rate(step),
                granules=run.plan.granules_per_step,
                tokens=sum(tokens for tokens, _ in sizes),
                padded_tokens=sum(padded for _, padded in sizes),
                # The record stands for all workers.
                data_seconds=self._data_seconds * workers,
                seconds=now - self._step_metrics.begin(now),
                precision="fp32",
            )
        )
        self._data_seconds = 0.0
        return self._keep(step + 1) if is_kept(run, self._part, step + 1) else None

    def _keep(self, step: int) -> Checkpoint:
        state = self._states.take(self._graph, step)
        if self._run.is_checkpointed(step):
            run, training = self._run, self._run.config.training
            keep, spared = training.kept_checkpoints, training.averaged_steps(step)
            save_checkpoint(run.run_folder, state, keep, spared, attempt=run.attempt)
        return state


def is_kept(run: TrainingRun, part: StepRange, step: int) -> bool:
    """Whether the executors write down the state before a step."""
    return run.is_checkpointed(step) or step == part.last
