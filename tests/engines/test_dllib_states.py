"""Where dllib's workers put the state of a checkpoint, and what becomes of it."""

from __future__ import annotations

import pytest

from pipelines.engines.bigdl.dllib import states_in
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import location
from pipelines.files.run_folder import RunFolder


def test_the_folder_goes_with_the_training(tmp_path):
    checkpoints = RunFolder(tmp_path).checkpoints
    with states_in(tmp_path, 2) as first, states_in(tmp_path, 2) as second:
        assert first.folder != second.folder, "an earlier attempt may write still"
        assert sorted(checkpoints.iterdir()) == sorted([first.folder, second.folder])
    assert list(checkpoints.iterdir()) == []


def test_what_a_driver_that_died_has_left_is_swept_by_whoever_goes_on(tmp_path):
    checkpoints = RunFolder(tmp_path).checkpoints
    with states_in(tmp_path, 2) as states:
        (states.folder / "state-3-0.bin").write_bytes(b"half of it")
        storage.sweep(checkpoints)
        assert list(checkpoints.iterdir()) == []


def test_a_store_is_refused():
    with pytest.raises(InputError, match=r"^run\.folder: s3://lake/run is in an object store"):
        states_in(location("s3://lake/run"), 2).__enter__()
