"""Which checkpoints are measured: those of an interrupted run, and the last of one that ends early.

What a process would answer is given here; the rest is what a driver does.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from planned_runs import make_run
from steppers import SPEC

from pipelines.evaluation.during_training import CheckpointEvaluation
from pipelines.evaluation.measure_checkpoint import STATE
from pipelines.evaluation.snapshot import Snapshot
from pipelines.models.weights import random_weights
from pipelines.runs.best import Best, Metric, ask_to_end, is_to_end, keep_if_best, read_best
from pipelines.runs.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    write_files,
)
from pipelines.runs.evaluations import add_evaluations, read_evaluations
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
        assert [line["step"] for line in read_evaluations(run)] == [6]
    assert measured == [9]


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
