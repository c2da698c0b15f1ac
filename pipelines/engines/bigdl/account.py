"""What dllib tells of its steps becomes metrics lines and checkpoints. Runs on the driver."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.encoder.bigdl import Graph
from pipelines.engines.bigdl.feeding import Part, Sizes
from pipelines.engines.bigdl.states import States
from pipelines.engines.bigdl.watch import StepTimes
from pipelines.training.checkpoint import Checkpoint, save_checkpoint
from pipelines.training.ledger import Ledger, StepRecord
from pipelines.training.loop import check_finite
from pipelines.training.run import TrainingRun
from pipelines.training.schedule import learning_rate

OnStep = Callable[[StepTimes], None]


class Account:
    """Enters the steps of a part into the ledger, and keeps the checkpoints.

    Args:
        run: The run.
        graph: What is trained.
        states: Where the executors write the state.
        ledger: Of the run.
        on_step: Called with the times of each step.
    """

    def __init__(
        self, run: TrainingRun, graph: Graph, states: States, ledger: Ledger, on_step: OnStep
    ) -> None:
        self._run = run
        self._graph = graph
        self._states = states
        self._ledger = ledger
        self._on_step = on_step
        self._waited = 0.0

    def begin(self, part: Part, sizes: Sizes, waited: float) -> None:
        """A part begins.

        Args:
            part: Its steps.
            sizes: Of each step.
            waited: Seconds that all workers have waited for its granules.
        """
        # From the first step of all on.
        self._ledger.begin(time.monotonic())
        self._part, self._sizes, self._waited = part, sizes, waited

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
        self._ledger.add(
            StepRecord(
                step=step,
                epoch=step // run.plan.steps_per_epoch,
                loss=times.loss,
                learning_rate=learning_rate(step, run.last_step, run.config.training),
                granules=run.plan.granules_per_step,
                tokens=sum(tokens for tokens, _ in sizes),
                slots=sum(slots for _, slots in sizes),
                # The record stands for all workers.
                waited=self._waited * workers,
                seconds=now - self._ledger.begin(now),
            )
        )
        self._waited = 0.0
        return self._keep(step + 1) if is_kept(run, self._part, step + 1) else None

    def _keep(self, step: int) -> Checkpoint:
        state = self._states.take(self._graph, step)
        if self._run.is_checkpointed(step):
            keep = self._run.config.training.keep_checkpoints
            save_checkpoint(self._run.run_folder, state, keep)
        return state


def is_kept(run: TrainingRun, part: Part, step: int) -> bool:
    """Whether the executors write down the state before a step."""
    return run.is_checkpointed(step) or step == part.last
