"""Checkpoints of which any file is damaged: they are whole, or torn, and nothing else happens."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_file, fuzzed, read_or_refused
from steppers import SPEC

from pipelines.models.adaptation import Frozen
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import (
    Checkpoint,
    TornCheckpoint,
    checkpoint_path,
    load_checkpoint,
    load_shapes,
    load_spec,
    newest_whole_checkpoint,
    save_checkpoint,
    save_frozen,
)

WEIGHTS = random_weights(SPEC, 3)
MOMENTS = {f"{kind}/{name}": np.abs(value) for kind in "mv" for name, value in WEIGHTS.items()}
STATE = Checkpoint(10, SPEC, WEIGHTS, MOMENTS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    save_frozen(folder, Frozen(weights=WEIGHTS, scale=1.0))
    save_checkpoint(folder, STATE, 9)
    return folder


def read_all(folder: Path) -> Checkpoint:
    assert load_spec(folder, 10) is not None
    assert load_shapes(folder, 10) is not None
    load_checkpoint(folder, 10, rows=lambda count: slice(0, count // 2))
    return load_checkpoint(folder, 10)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "checkpoints").rglob("*") if path.is_file())


@fuzzed
@given(data=st.data())
def test_a_damaged_checkpoint_is_whole_or_torn(run, data):
    path = data.draw(st.sampled_from(files_of(run)))
    whole = path.read_bytes()
    try:
        if data.draw(st.booleans(), label="missing") and data.draw(st.booleans()):
            path.unlink()
        else:
            path.write_bytes(data.draw(damaged_file(path)))
        changed = not path.exists() or path.read_bytes() != whole
        read_or_refused(lambda: read_all(run), str(run))
        found = read_or_refused(lambda: newest_whole_checkpoint(run), str(run))
        # Checksums tell of any byte of an array; what is in state.json is not summed up itself.
        assert found is None or not changed or path.name == "state.json"
        if found is not None:
            assert load_checkpoint(run, found).step == 10
    finally:
        path.write_bytes(whole)


def test_it_is_whole_before(run):
    assert newest_whole_checkpoint(run) == 10
    np.testing.assert_equal(read_all(run).weights, WEIGHTS)


def test_a_checkpoint_whose_state_names_other_files_is_torn(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "copy")
    state = checkpoint_path(folder, 10) / "state.json"
    text = state.read_text()
    state.write_text(text.replace('"optimizer.safetensors"', '"../../../other"'))
    with pytest.raises(TornCheckpoint, match="lists files that no checkpoint has"):
        load_checkpoint(folder, 10)


@pytest.mark.parametrize("scale", ["9" * 400, "NaN", "null", "[]", "1e999"])
def test_a_scale_that_is_no_number_is_told(run, tmp_path, scale):
    folder = shutil.copytree(run, tmp_path / "copy")
    state = folder / "checkpoints" / "frozen" / "state.json"
    state.write_text(re.sub(r'"scale": [\d.]+', f'"scale": {scale}', state.read_text()))
    with pytest.raises(TornCheckpoint, match="holds no scale"):
        load_checkpoint(folder, 10)
