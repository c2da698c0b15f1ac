"""Checkpoints that are whole, those that are torn, and what is not worth keeping."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from steppers import SPEC

from pipelines.errors import InputError
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import (
    Checkpoint,
    TornCheckpoint,
    checkpoint_path,
    checkpoint_steps,
    load_checkpoint,
    newest_checkpoint,
    newest_whole_checkpoint,
    save_checkpoint,
)

WEIGHTS = random_weights(SPEC, 3)
MOMENTS = {f"{kind}/{name}": np.abs(value) for kind in "mv" for name, value in WEIGHTS.items()}
START = Checkpoint(0, SPEC, WEIGHTS, {})
LATER = Checkpoint(10, SPEC, WEIGHTS, MOMENTS)


@pytest.fixture
def run(tmp_path):
    for checkpoint in (START, LATER, replace(LATER, step=20)):
        save_checkpoint(tmp_path, checkpoint, 9)
    return tmp_path


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    """Changes a bit of the last number, which leaves a file that any library reads."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def forget_files(path):
    state = json.loads(path.read_text())
    del state["files"]
    path.write_text(json.dumps(state))


DAMAGES = [
    ("model.safetensors", truncate, "of .* bytes"),
    ("optimizer.safetensors", truncate, "of .* bytes"),
    ("model.safetensors", os.remove, "missing"),
    ("optimizer.safetensors", os.remove, "missing"),
    ("state.json", os.remove, "missing"),
    ("state.json", truncate, "cannot be read"),
    ("state.json", forget_files, "does not list"),
    ("model.safetensors", flip, "checksum"),
    ("optimizer.safetensors", flip, "checksum"),
]


@pytest.mark.parametrize(("name", "damage", "cause"), DAMAGES)
def test_the_newest_whole_one_takes_the_place_of_a_torn_one(run, caplog, name, damage, cause):
    assert newest_checkpoint(run) == 20
    assert caplog.messages == []
    torn = checkpoint_path(run, 20) / name
    damage(torn)
    assert newest_checkpoint(run) == 10
    (message,) = caplog.messages
    assert str(torn) in message
    assert caplog.records[0].levelname == "WARNING"
    assert newest_whole_checkpoint(run, latest=9) == 0
    if cause != "checksum":
        with pytest.raises(TornCheckpoint, match=rf"^{torn}.*{cause}"):
            load_checkpoint(run, 20)


def test_without_a_whole_one_there_is_nothing_to_resume(run):
    for step in (0, 10, 20):
        truncate(checkpoint_path(run, step) / "model.safetensors")
    with pytest.raises(InputError, match=r"^training\.resume: .* holds no whole checkpoint\. Res"):
        newest_checkpoint(run)


def test_a_torn_one_that_is_newer_costs_no_whole_one(run):
    truncate(checkpoint_path(run, 20) / "model.safetensors")
    save_checkpoint(run, replace(LATER, step=15), keep=1)
    assert checkpoint_steps(run) == [15, 20]
    assert newest_checkpoint(run) == 15
    save_checkpoint(run, replace(LATER, step=20), keep=1)
    assert checkpoint_steps(run) == [newest_checkpoint(run)] == [20]


def test_folders_of_others_are_no_checkpoints(run):
    (run / "checkpoints" / "step-00000020.copy").mkdir()
    assert checkpoint_steps(run) == [0, 10, 20]


def test_all_that_was_written_is_flushed_before_the_name_and_the_name_before_others_go(
    run, monkeypatch
):
    flushed, fsync, rename = [], os.fsync, os.rename

    def kept_fsync(descriptor):
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    def kept_rename(source, target, **named):
        flushed.append("renamed" if str(target).endswith("step-00000030") else "removed")
        rename(source, target, **named)

    monkeypatch.setattr(os, "fsync", kept_fsync)
    monkeypatch.setattr(os, "rename", kept_rename)
    save_checkpoint(run, replace(LATER, step=30), keep=3)
    files, folder, *rest = flushed[:3], flushed[3], *flushed[4:]
    assert files == ["model.safetensors", "optimizer.safetensors", "state.json"]
    assert folder.startswith(".step-00000030.")
    assert rest == ["renamed", "checkpoints", "removed"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["weights", "moments"])
def test_numbers_that_are_none_are_not_kept(run, kind, number):
    arrays = {name: value.copy() for name, value in getattr(LATER, kind).items()}
    name = list(arrays)[-1]
    arrays[name].reshape(-1)[3] = number
    with pytest.raises(FloatingPointError, match=rf"step 29 .* {name} .*training\.learning_rate"):
        save_checkpoint(run, replace(LATER, step=30, **{kind: arrays}), 9)
    assert checkpoint_steps(run) == [0, 10, 20]


def test_the_largest_numbers_are_numbers(run):
    largest = {name: np.full_like(value, 3e38) for name, value in WEIGHTS.items()}
    save_checkpoint(run, replace(LATER, step=30, weights=largest), 9)
    assert newest_checkpoint(run) == 30


def test_others_can_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        path = save_checkpoint(tmp_path, LATER, 9)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert (modes, len(list(path.iterdir()))) == ({0o644}, 3)
