"""A run's steps made in this process, on any device."""

from __future__ import annotations

from itertools import islice

import numpy as np

from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.base import lane_feed
from pipelines.training.steppers.torch import TorchStepper
from pipelines_bench.gpu.torch_machine import workers_on


def losses_here(run: TrainingRun, device: str) -> np.ndarray:
    """The losses of all steps that are left of a run."""
    return _made(run, run.last_step - run.first_step, device)[0]


def write_checkpoint_here(run: TrainingRun, step: int, device: str) -> None:
    """Makes the steps before one, and writes the state there."""
    _, checkpoint = _made(run, step - run.first_step, device)
    save_checkpoint(run.run_folder, checkpoint, 9)


def _made(run: TrainingRun, steps: int, device: str) -> tuple[np.ndarray, Checkpoint]:
    task = WorkerTask(run=run, rank=0, workers=1, monitor=("", 0), token="")
    with workers_on(device):
        stepper = TorchStepper(
            task, load_checkpoint(run.run_folder, run.first_step), SingleProcess()
        )
        losses = [
            stepper.step(work, run.learning_rate(work.index))
            for work in islice(lane_feed(task), steps)
        ]
        return np.array(losses), stepper.checkpoint(run.first_step + steps)
