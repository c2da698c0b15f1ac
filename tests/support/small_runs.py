"""Runs of engine `local` in PyTorch on small lanes, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lanes_factory import VOCABULARY, write_small_lanes

from pipelines.jobs.training_plan import batch_plan
from pipelines.models.adaptation import split
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint, save_frozen
from pipelines.runs.run import TrainingRun
from pipelines.settings.load import parse

SPEC = BertSpec(vocabulary=VOCABULARY, layers=1, hidden=16, heads=2, intermediate=32, positions=16)
TRAINING = {
    "engine": "local",
    "framework": "torch",
    "workers": 1,
    "granules_per_step": 2,
    "threads": 1,
    "precision": "fp32",
}


def small_run(
    folder: Path, last_step: int, tree: dict[str, Any], *, layers: int = 1
) -> TrainingRun:
    """A run from random weights, with its first checkpoint.

    Args:
        folder: Is filled.
        tree: Settings; those of training have defaults.
        layers: Of the encoder: at least one for each stage of a pipeline.
    """
    manifest = write_small_lanes(folder / "lanes")
    config = parse({**tree, "training": TRAINING | tree.get("training", {})})
    spec = replace(SPEC, layers=layers)
    trained, frozen = split(config.encoder, random_weights(spec, 5), config.training.seed)
    save_frozen(folder / "run", frozen)
    save_checkpoint(folder / "run", Checkpoint(0, spec, trained, {}), 9)
    return TrainingRun(
        config=config,
        plan=batch_plan(config, manifest),
        manifest=manifest,
        lanes_folder=folder / "lanes",
        run_folder=folder / "run",
        first_step=0,
        last_step=last_step,
    )
