"""What is known of the jobs that have worked on a run."""

import json
from datetime import UTC, datetime

import pytest

from pipelines.files import storage
from pipelines.provenance import given_on_command_line
from pipelines.runs.job_records import (
    PreparedStage,
    Start,
    begin_job,
    end_job,
    expected_seconds,
    go_on,
    keep_preparation,
    keep_seconds,
    prepared_folder_of,
    read_jobs,
)
from pipelines.runs.learning_rate import Horizon
from pipelines.settings import Config
from pipelines.settings.fields import fields
from pipelines.settings.load import parse
from pipelines.settings.resuming import FIXED, FREE, RECORDED, SECTIONS, recorded_settings

MOMENT = datetime(2026, 11, 23, 20, 47, 17, 123456, tzinfo=UTC)


def test_each_job_is_noted_and_says_how_long_it_took(tmp_path):
    killed, start = Start(MOMENT), Start(MOMENT)
    with given_on_command_line(["train", "--config", "my job.yaml"]):
        begin_job(tmp_path, "train", killed)
        begin_job(tmp_path, "train", start)
        end_job(tmp_path, start)
    begin_job(tmp_path, "evaluate", Start())
    first, second, third = read_jobs(tmp_path).jobs
    assert first.seconds is None
    assert second.seconds is not None
    assert 0 <= second.seconds < 60
    assert first.began == "2026-11-23T20:47:17+00:00"
    assert first.command == "sentence-pipelines train --config 'my job.yaml'"
    assert (third.name, third.command) == ("evaluate", None)
    assert first.host


def test_no_secret_of_a_command_line_is_noted(tmp_path):
    secret = "sesame-" + "1234"
    with given_on_command_line(["train", "--set", f"spark.hadoop.fs.s3a.secret.key={secret}"]):
        begin_job(tmp_path, "train", Start())
    assert secret not in (tmp_path / "jobs.json").read_text()


def test_a_run_knows_its_preparation_wherever_both_are_moved(tmp_path):
    run, prepared = tmp_path / "here" / "runs" / "a", tmp_path / "here" / "prepared"
    stages = [{"stage": "corpus", "seconds": 1.5, "kept": True}]
    storage.write_json(prepared / "stages.json", stages)
    assert prepared_folder_of(run) is None
    keep_preparation(run, prepared)
    assert read_jobs(run).preparation == (PreparedStage("corpus", 1.5, is_kept=True),)
    assert prepared_folder_of(run) == prepared
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tmp_path / "there"
    assert prepared_folder_of(moved / "runs" / "a") == moved / "prepared"


def test_nothing_is_known_of_a_run_of_an_earlier_release(tmp_path):
    assert read_jobs(tmp_path).jobs == ()
    keep_preparation(tmp_path, tmp_path / "prepared")
    assert read_jobs(tmp_path).preparation == ()


SECONDS = {"starting": 9.0, "training": 30.0, "evaluating": 12.5}


def config(folder, **sections):
    prepared, run = {"folder": str(folder / "prepared")}, {"folder": str(folder / "run")}
    return parse({"prepared": prepared, "run": run, **sections})


def test_the_next_run_of_the_same_settings_takes_as_long(tmp_path):
    (tmp_path / "prepared").mkdir()
    assert expected_seconds(config(tmp_path)) == {}
    keep_seconds(config(tmp_path), SECONDS)
    elsewhere = config(tmp_path, run={"folder": str(tmp_path / "other")})
    assert expected_seconds(elsewhere) == {"evaluating": 12.5}


def test_of_other_settings_nothing_is_known(tmp_path):
    (tmp_path / "prepared").mkdir()
    keep_seconds(config(tmp_path), SECONDS)
    assert expected_seconds(config(tmp_path, training={"workers": 1})) == {}


def test_what_is_kept_holds_no_secret(tmp_path):
    (tmp_path / "prepared").mkdir()
    keep_seconds(config(tmp_path, spark={"hadoop.fs.s3a.secret.key": "hidden-word"}), SECONDS)
    (file,) = (tmp_path / "prepared").iterdir()
    assert "hidden-word" not in file.read_text()


def with_training(**training) -> Config:
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
    assert recorded_settings(with_training(workers=1))["training.workers"] == 1


def test_a_run_remembers_from_which_step_on_it_was_made_otherwise(tmp_path, caplog):
    caplog.set_level("INFO")
    whole = (Horizon(step=0, last_step=100),)
    assert go_on(tmp_path, with_training(), 0, 100) == whole
    assert go_on(tmp_path, with_training(), 20, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2)]
    assert caplog.messages == []
    assert go_on(tmp_path, with_training(workers=1, log_every=3), 40, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2), (40, 100, 1)]
    assert caplog.messages == ["from step 40 on: training.workers 1 (it was 2)"]
    # Its newest checkpoints were lost: what is made again is made as it is now.
    assert go_on(tmp_path, with_training(workers=2), 30, 100) == whole
    assert chapters(tmp_path) == [(0, 100, 2)]


def test_a_run_remembers_where_it_was_to_end(tmp_path, caplog):
    caplog.set_level("INFO")
    go_on(tmp_path, with_training(), 0, 100)
    horizons = go_on(tmp_path, with_training(max_steps=150), 60, 150)
    assert horizons == (Horizon(step=0, last_step=100), Horizon(step=60, last_step=150))
    assert "ends at step 150 instead of 100" in caplog.messages[-1]
    assert "decays from its current value to the new end" in caplog.messages[-1]
    # There is nothing left to do, so nothing is made otherwise.
    assert go_on(tmp_path, with_training(workers=1, max_steps=120), 150, 120) == horizons
    later = go_on(tmp_path, with_training(max_steps=200), 150, 200)
    assert later == (*horizons, Horizon(step=150, last_step=200))
    assert "warms up and decays once more" in caplog.messages[-1]
    assert go_on(tmp_path, with_training(max_steps=300), 150, 300)[-1] == Horizon(
        step=150, last_step=300
    )


def test_a_run_without_a_history_has_always_been_as_it_is(tmp_path):
    assert go_on(tmp_path, with_training(), 40, 100) == (Horizon(step=0, last_step=100),)
    assert chapters(tmp_path) == [(0, 100, 2)]


@pytest.mark.parametrize("first_step", [100, 120])
def test_nothing_is_written_of_a_run_that_is_done(tmp_path, first_step):
    assert go_on(tmp_path, with_training(), first_step, 100) == (Horizon(step=0, last_step=100),)
    assert not (tmp_path / "history.json").exists()
