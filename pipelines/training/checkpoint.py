"""Checkpoints: folders ``checkpoints/step-00001200``, each whole or not there.

A checkpoint is taken *before* the step that it is named after: step 0 holds the weights that
training starts from, so that starting and resuming are one thing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines import storage
from pipelines.encoder.spec import EncoderSpec
from pipelines.encoder.weights import Rows, Weights, load_weights, save_weights
from pipelines.errors import InputError

_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A state of training.

    Attributes:
        step: The next step.
        spec: The encoder's shape.
        weights: Its weights.
        moments: The optimiser's arrays, ``m/NAME`` and ``v/NAME``; empty before step 1.
    """

    step: int
    spec: EncoderSpec
    weights: Weights
    moments: dict[str, np.ndarray]


def checkpoint_path(run_folder: Path, step: int) -> Path:
    """Where the checkpoint before a step stands."""
    return run_folder / "checkpoints" / f"{_PREFIX}{step:08d}"


def save_checkpoint(run_folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint aside, renames it, and deletes all but the newest ``keep``."""
    path = checkpoint_path(run_folder, checkpoint.step)
    with storage.new_folder(path) as folder:
        save_weights(folder / "model.safetensors", checkpoint.weights)
        if checkpoint.moments:
            save_weights(folder / "optimizer.safetensors", checkpoint.moments)
        state = {"step": checkpoint.step, "encoder": checkpoint.spec.to_json()}
        storage.write_json(folder / "state.json", state)
    for step in checkpoint_steps(run_folder)[:-keep]:
        storage.remove_folder(checkpoint_path(run_folder, step))
    return path


def remove_torn_checkpoints(run_folder: Path) -> None:
    """Removes what writers that are gone left unfinished, on whatever host they were.

    Args:
        run_folder: Nobody writes to it now.
    """
    for torn in (run_folder / "checkpoints").glob(f".{_PREFIX}*"):
        shutil.rmtree(torn, ignore_errors=True)


def load_checkpoint(run_folder: Path, step: int, rows: Rows | None = None) -> Checkpoint:
    """Reads the checkpoint before a step.

    Args:
        run_folder: Folder of the run.
        step: The step.
        rows: See :func:`pipelines.encoder.weights.load_weights`.
    """
    path = checkpoint_path(run_folder, step)
    optimizer = path / "optimizer.safetensors"
    return Checkpoint(
        step=step,
        spec=load_spec(run_folder, step),
        weights=load_weights(path / "model.safetensors", rows),
        moments=load_weights(optimizer, rows) if optimizer.exists() else {},
    )


def load_spec(run_folder: Path, step: int) -> EncoderSpec:
    """Reads the encoder's shape of the checkpoint before a step."""
    state = storage.read_json(checkpoint_path(run_folder, step) / "state.json")
    return EncoderSpec.from_json(state["encoder"])


def checkpoint_steps(run_folder: Path) -> list[int]:
    """The steps that a run can go on from, oldest first."""
    names = (path.name for path in (run_folder / "checkpoints").glob(f"{_PREFIX}*"))
    return sorted(int(name.removeprefix(_PREFIX)) for name in names)


def newest_checkpoint(run_folder: Path) -> int:
    """The newest step to go on from.

    Raises:
        InputError: There is none.
    """
    steps = checkpoint_steps(run_folder)
    if not steps:
        raise InputError(
            "training.resume", f"{run_folder} holds no checkpoint", "train without it first"
        )
    return steps[-1]
