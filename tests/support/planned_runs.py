"""Runs without lanes on disk, for what needs no more than their numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from pipelines.lanes.plan import BatchPlan
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.load import parse


def make_run(last_step: int, first_step: int = 0, folder: Path = Path(), **training) -> TrainingRun:
    """A run of two granules a step, on four lanes."""
    settings = {"workers": 2, "granules_per_step": 2} | training
    config = parse({"training": settings})
    return TrainingRun(
        config=config,
        plan=BatchPlan(lanes=4, rows=30, granules_per_step=2, seed=1),
        manifest=SimpleNamespace(granule=8),
        lanes_folder=folder,
        run_folder=folder,
        first_step=first_step,
        last_step=last_step,
    )


def make_task(run: TrainingRun, rank: int) -> WorkerTask:
    """A worker's task whose monitor nobody asks."""
    workers = run.config.training.workers
    return WorkerTask(run=run, rank=rank, workers=workers, monitor=("", 0), token="")
