"""Rates of whole training runs, as a user would make them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pipelines
from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.settings import Config


def training_rate(config: Config, steps: int, **training: Any) -> float:
    """Examples per second of a run, start-up left out.

    Args:
        config: Of lanes that are prepared.
        steps: Replaces ``training.max_steps``.
        training: Further settings of the section ``training``.
    """
    settings = config.training.model_copy(
        update={"max_steps": steps, "epochs": 1000, "checkpoint_every": steps} | training
    )
    with tempfile.TemporaryDirectory() as folder:
        run = config.run.model_copy(update={"folder": f"{folder}/run"})
        pipelines.train(config.model_copy(update={"training": settings, "run": run}))
        figures = storage.read_json(RunFolder(Path(run.folder)).metrics)
    return float(figures["training"]["examples_per_second"])
