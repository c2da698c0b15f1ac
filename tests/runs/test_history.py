"""What a run may change while it goes on, and what it remembers of it."""

import json

import pytest

from pipelines.runs.job_records import go_on
from pipelines.runs.learning_rate import Horizon
from pipelines.settings import Config
from pipelines.settings.fields import fields
from pipelines.settings.load import parse
from pipelines.settings.resuming import FIXED, FREE, RECORDED, SECTIONS, recorded_settings


def config(**training) -> Config:
    return parse({"training": training})


def chapters(folder):
    return [
        (one["step"], one["last_step"], one["settings"]["training.workers"])
        for one in json.loads((folder / "history.json").read_text())
    ]


def test_every_setting_of_a_training_is_said_to_be_fixed_recorded_or_free():
    """A new setting goes into one of the lists of ``pipelines/settings/resuming.py``."""
    keys = [
        field.key
        for field in fields()
        if field.key.split(".")[0] in SECTIONS and not field.key.startswith("objective.")
    ]
    # Whatever the keys of a loss are.
    keys.append("objective.*")
    assert sorted(FIXED + RECORDED + FREE) == sorted(keys)
    assert recorded_settings(config(workers=1))["training.workers"] == 1


def test_a_run_remembers_from_which_step_on_it_was_made_otherwise(tmp_path, caplog):
    caplog.set_level("INFO")
    whole = (Horizon(step=0, last_step=100),)
    assert go_on(tmp_path, config(), 0, 100) == whole
    assert go_on(tmp_path, config(), 20, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2)]
    assert caplog.messages == []
    assert go_on(tmp_path, config(workers=1, log_every=3), 40, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2), (40, 100, 1)]
    assert caplog.messages == ["from step 40 on: training.workers 1 (it was 2)"]
    # Its newest checkpoints were lost: what is made again is made as it is now.
    assert go_on(tmp_path, config(workers=2), 30, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2)]


def test_a_run_remembers_where_it_was_to_end(tmp_path, caplog):
    caplog.set_level("INFO")
    go_on(tmp_path, config(), 0, 100)
    horizons = go_on(tmp_path, config(max_steps=150), 60, 150)
    assert horizons == (Horizon(step=0, last_step=100), Horizon(step=60, last_step=150))
    assert "ends at step 150 instead of 100" in caplog.messages[-1]
    assert "decays to the new end from where it is" in caplog.messages[-1]
    # There is nothing left to do, so nothing is made otherwise.
    assert go_on(tmp_path, config(workers=1, max_steps=120), 150, 120) == horizons
    later = go_on(tmp_path, config(max_steps=200), 150, 200)
    assert later == (*horizons, Horizon(step=150, last_step=200))
    assert "rises and decays once more" in caplog.messages[-1]
    assert go_on(tmp_path, config(max_steps=300), 150, 300)[-1] == Horizon(step=150, last_step=300)


def test_a_run_without_a_history_has_always_been_as_it_is(tmp_path):
    assert go_on(tmp_path, config(), 40, 100) == (Horizon(step=0, last_step=100),)
    assert chapters(tmp_path) == [(0, 100, 2)]


@pytest.mark.parametrize("first_step", [100, 120])
def test_nothing_is_written_of_a_run_that_is_done(tmp_path, first_step):
    assert go_on(tmp_path, config(), first_step, 100) == (Horizon(step=0, last_step=100),)
    assert not (tmp_path / "history.json").exists()
