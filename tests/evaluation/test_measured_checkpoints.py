"""Which checkpoints are measured: those of an interrupted run, and the last of one that ends early.

What a process would answer is given here; the rest is what a driver does.
"""

import json
import logging
import multiprocessing
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from planned_runs import make_run
from steppers import SPEC

from pipelines.errors import PipelineError
from pipelines.evaluation.during_training import CheckpointEvaluation
from pipelines.evaluation.measure_checkpoint import STATE, Snapshot
from pipelines.files.owners import fence
from pipelines.models.weights import random_weights
from pipelines.runs.attempts import SupersededError, begin_attempt, fenced
from pipelines.runs.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    write_files,
)
from pipelines.runs.job_records import add_evaluations, read_evaluations
from pipelines.runs.model_choice import Best, Metric, ask_to_end, is_to_end, keep_if_best, read_best
from pipelines.settings.load import parse

SPEARMAN = Metric(evaluation="dev", figure="spearman")
FIGURES = {3: 10.0, 6: 30.0, 9: 20.0, 12: 40.0}


@pytest.fixture
def measured(monkeypatch) -> list[int]:
    """The steps that processes were asked to measure, in order."""
    asked: list[int] = []

    def answer(self, job: bytes) -> bytes:
        told = json.loads(job)
        asked.append(told["step"])
        written = Path(told["folder"], STATE)
        written.mkdir()
        write_files(written, load_checkpoint(Path(told["run_folder"]), told["step"]))
        return json.dumps({"dev": {"spearman": FIGURES[told["step"]]}}).encode()

    monkeypatch.setattr(CheckpointEvaluation, "_ask", answer)
    return asked


def save(folder: Path, *steps: int) -> None:
    weights = random_weights(SPEC, 3)
    for step in steps:
        save_checkpoint(folder, Checkpoint(step, SPEC, weights, {}), keep=99)


def evaluation(folder: Path, first: int, last: int, every: int = 1, **training):
    """That of a run with a checkpoint every third step, which goes on from one."""
    settings = {"checkpoint_every": 3, "keep_best": str(SPEARMAN)} | training
    config = parse({"training": settings, "evaluation": {"every_checkpoints": every}})
    run = replace(make_run(last, first, folder), config=config)
    metric = SPEARMAN if config.training.keep_best else None
    snapshots = [Snapshot("dev", "similarity", {})]
    return CheckpointEvaluation(snapshots, run, folder / "tokenizer", metric=metric)


def compare(folder: Path, step: int, tmp_path: Path) -> None:
    """What a driver did of before: measured a checkpoint, and kept it if it was the best."""
    add_evaluations(folder, step, {"dev": {"spearman": FIGURES[step]}})
    written = tmp_path / f"written-{step}"
    written.mkdir()
    write_files(written, load_checkpoint(folder, step))
    keep_if_best(folder, SPEARMAN, step, FIGURES[step], written)


def best_of(folder: Path) -> Best | None:
    return read_best(folder, str(SPEARMAN))


def test_a_resumed_run_measures_the_checkpoint_that_it_goes_on_from(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 3, 6)
    compare(run, 3, tmp_path)
    with evaluation(run, first=6, last=12):
        save(run, 9)
    assert measured == [6, 9]
    assert best_of(run) == Best(step=6, metric="dev.spearman", value=30.0)


def test_where_no_step_is_left_the_last_checkpoint_is_compared(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 9, 12)
    compare(run, 9, tmp_path)
    with evaluation(run, first=12, last=12):
        pass
    assert measured == [12]
    assert best_of(run) == Best(step=12, metric="dev.spearman", value=40.0)
    # Once is enough.
    with evaluation(run, first=12, last=12):
        pass
    assert measured == [12]


def test_a_figure_without_its_state_is_measured_again(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 3, 6, 9)
    compare(run, 3, tmp_path)
    # The driver was killed between the two.
    add_evaluations(run, 6, {"dev": {"spearman": FIGURES[6]}})
    add_evaluations(run, 9, {"dev": {"spearman": 5.0}})
    with evaluation(run, first=9, last=12):
        pass
    assert measured == [6]
    assert best_of(run) == Best(step=6, metric="dev.spearman", value=30.0)


def test_what_is_made_again_is_measured_again(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 6, 9)
    compare(run, 6, tmp_path)
    compare(run, 9, tmp_path)
    # The checkpoint of step 9 is torn.
    with evaluation(run, first=6, last=9):
        pass
    assert measured == [9]
    assert [line["step"] for line in read_evaluations(run)] == [6, 9]


def test_without_a_best_to_keep_the_last_is_left_to_the_job(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 3, 6, 7)
    add_evaluations(run, 3, {"dev": {"spearman": 10.0}})
    with evaluation(run, first=7, last=9, keep_best=None):
        save(run, 9)
    assert measured == [6]


def test_a_checkpoint_of_before_counts_for_the_patience(tmp_path, measured):
    run = tmp_path / "run"
    save(run, 0, 6, 9)
    compare(run, 6, tmp_path)
    with evaluation(run, first=9, last=15, patience=1):
        pass
    assert measured == [9]
    assert is_to_end(run)


@pytest.mark.parametrize("asked", [True, False])
def test_the_last_checkpoint_of_a_run_that_ends_early_is_compared(tmp_path, measured, asked):
    run = tmp_path / "run"
    save(run, 0, 3, 6)
    compare(run, 6, tmp_path)
    if asked:
        ask_to_end(run)
    with evaluation(run, first=6, last=30, every=2, patience=2):
        save(run, 9)
        # Written by an attempt of before; nobody can go on from it.
        save(run, 15)
        (checkpoint_path(run, 15) / "model.safetensors").write_bytes(b"")
    assert measured == ([9] if asked else [])


def begin_elsewhere(folder: Path) -> None:
    """As a driver of another host does: this process does not learn of it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(begin_attempt, (folder, 0))


def test_figures_of_a_run_that_was_taken_over_are_not_written_and_the_run_ends(tmp_path, measured):
    run = tmp_path / "run"
    attempt = begin_attempt(run, None)
    save(run, 0)
    measuring = evaluation(run, first=0, last=12)
    ended = pytest.raises(SupersededError, match="attempt 2 on the run has begun")
    with fenced(run, attempt), ended, measuring:
        begin_elsewhere(run)
        # Of the later attempt, which is all that this job sees now.
        save(tmp_path / "later", 3)
        counts = run / "checkpoints" / "step-00000003-attempt-2"
        shutil.copytree(checkpoint_path(tmp_path / "later", 3), counts)
        await_error(measuring)
    assert measured == [3]
    assert read_evaluations(run) == []


def await_error(measuring: CheckpointEvaluation) -> None:
    """Returns once a listener of the training would be told, which ends it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            measuring.check()
        except SupersededError:
            return
        time.sleep(0.05)
    raise AssertionError("the thread has not told")


def await_warning(caplog) -> None:
    deadline = time.monotonic() + 60
    while not caplog.messages:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_another_error_of_the_package_costs_one_line(tmp_path, measured, caplog):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    save(run, 0)
    save(elsewhere, 3)
    (checkpoint,) = (elsewhere / "checkpoints").glob("*3")

    def refuse() -> None:
        raise PipelineError("the lock was taken over")

    with caplog.at_level(logging.WARNING), evaluation(run, first=0, last=12):
        with fence(run, refuse):
            # Not before: the measurement of a checkpoint that is there may begin at once.
            checkpoint.rename(run / checkpoint.relative_to(elsewhere))
            await_warning(caplog)
        save(run, 6)
    assert [line.partition(";")[0] for line in caplog.messages] == [
        "step 3 was not measured (the lock was taken over). Training goes on"
    ]
    assert measured == [3, 6]
    assert [line["step"] for line in read_evaluations(run)] == [6]


def test_a_folder_that_cannot_be_read_for_a_while_costs_one_line(tmp_path, measured, caplog):
    run = tmp_path / "run"
    begin_attempt(run, None)
    save(run, 0)
    unreadable = run / "attempts" / "00000002.json"
    unreadable.mkdir()
    with caplog.at_level(logging.WARNING), evaluation(run, first=0, last=12):
        await_warning(caplog)
        unreadable.rmdir()
        save(run, 3)
    assert [line.partition(" (")[0] for line in caplog.messages] == [
        "checkpoints were not measured"
    ]
    assert measured == [3]
