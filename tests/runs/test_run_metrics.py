"""The record of a run that was stopped and went on."""

import dataclasses
import json

from planned_runs import make_run

from pipelines.files import storage
from pipelines.runs.run import TrainingOutcome
from pipelines.runs.step_metrics import (
    forget_earlier_model,
    logged_figures,
    seconds_to,
    training_figures,
    update_run_metrics,
)


def write_log(folder, *lines):
    text = "".join(
        json.dumps({"step": step, "seconds": seconds, "loss": 0.5}) + "\n"
        for step, seconds in lines
    )
    (folder / "metrics.jsonl").write_text(text + '{"step": 9')


def test_seconds_of_all_tries_count(tmp_path):
    assert seconds_to(tmp_path, 8) == 0
    write_log(tmp_path, (2, 10.0), (4, 20.0), (6, 3.0), (8, 6.0))
    assert seconds_to(tmp_path, 4) == 20
    assert seconds_to(tmp_path, 8) == 26


def test_a_run_that_went_on_counts_its_steps_from_the_first(tmp_path):
    run = make_run(9, first_step=4, folder=tmp_path)
    write_log(tmp_path, (8, 6.0), (9, 7.0))
    outcome = TrainingOutcome(
        steps=5,
        examples=5 * run.examples_per_step,
        seconds=7.0,
        examples_per_second=1.0,
        # The last loss of all is that of a single step.
        losses=(0.4, 0.6, 0.5, 0.5, 0.1),
    )
    figures = training_figures(run, outcome, 20.0)
    assert figures["steps"] == 9
    assert figures["examples"] == 9 * run.examples_per_step
    assert figures["seconds"] == 27
    assert figures["final_loss"] == 0.5


def test_what_was_measured_of_an_earlier_model_is_forgotten(tmp_path):
    forget_earlier_model(tmp_path)
    assert not (tmp_path / "metrics.json").exists()
    update_run_metrics(tmp_path, {"before": {"a": 1}, "after": {"a": 2}, "measured": {}})
    update_run_metrics(tmp_path, {"training": {"steps": 3}})
    (tmp_path / "samples.json").write_text("{}")
    forget_earlier_model(tmp_path)
    assert storage.read_json(tmp_path / "metrics.json") == {"before": {"a": 1}}
    assert not (tmp_path / "samples.json").exists()


def test_a_driver_that_died_behind_the_last_step_leaves_its_log(tmp_path):
    run = dataclasses.replace(make_run(8, folder=tmp_path), first_step=8)
    assert logged_figures(run) is None
    write_log(tmp_path, (4, 20.0), (8, 6.0))
    figures = logged_figures(run)
    assert figures["steps"] == 8
    assert figures["seconds"] == 26
    assert figures["final_loss"] == 0.5
    update_run_metrics(tmp_path, {"training": figures})
    assert logged_figures(run) is None


def test_cpu_time_is_known_if_that_of_every_step_is(tmp_path):
    run = dataclasses.replace(make_run(8, folder=tmp_path), first_step=8)
    lines = [{"step": step, "seconds": 1.0, "loss": 0.5, "cpu_seconds": 1.25} for step in (4, 8)]
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert logged_figures(run)["cpu_seconds"] == 2.5
    # Of an earlier release.
    del lines[0]["cpu_seconds"]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "cpu_seconds" not in logged_figures(run)
