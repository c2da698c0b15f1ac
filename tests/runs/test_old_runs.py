"""Old runs are removed, and nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.files import locks, storage
from pipelines.files.run_folder import RunFolder


@pytest.fixture
def runs(tmp_path) -> Path:
    """Runs 0 to 5, the oldest first; the outcomes of the jobs of two; and other things."""
    folder = tmp_path / "runs"
    for number in range(6):
        make_run(folder / f"run-{number}", age=100 - number)
    for name in ("run-0.outcomes", "run-5.outcomes", "not-a-run"):
        (folder / name).mkdir()
        (folder / name / "train-1.json").touch()
    (folder / "link").symlink_to(folder / "run-0")
    (folder / "file").touch()
    return folder


def make_run(folder: Path, age: int) -> None:
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True)
    run.config.touch()
    storage.write_json(run.environment, {"sentence-pipelines": "1"})
    for path in (*run.marks, run.checkpoints, folder):
        os.utime(path, (1e9 - age, 1e9 - age))


def clean(runs: Path, run: str, *settings: str) -> int:
    given = [f"run.folder={runs / run}", *settings]
    return main(["clean", *(part for setting in given for part in ("--set", setting))])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_newest_runs_and_what_is_no_run_stay(runs, capsys):
    storage.aside_name(runs / "run-9", ".gone").mkdir()
    assert clean(runs, "run-1", "run.keep=2") == 0
    assert names(runs) == {
        *("run-1", "run-4", "run-5", "run-5.outcomes"),
        *("not-a-run", "link", "file"),
    }
    told = capsys.readouterr().out.split("\n")
    assert [line.split()[1] for line in told if line.startswith("removed")] == [
        *("run-0", "run-2", "run-3")
    ]
    assert clean(runs, "run-1", "run.keep=2") == 0
    assert "removed" not in capsys.readouterr().out


def test_what_no_job_has_written_stays(runs, caplog):
    for name in (".mine.gone", "theirs/checkpoints", "run-1/model/onnx", "run-2.outcomes"):
        (runs / name).mkdir(parents=True)
    for name in (
        *(".mine.gone/notes.txt", "theirs/checkpoints/mine.ckpt", "theirs/config.yaml"),
        *("run-0/notes.txt", "run-1/model/onnx/model.onnx", "run-2.outcomes/notes.txt"),
    ):
        (runs / name).write_text("mine")
    # Of another tool that names its files alike.
    storage.write_json(runs / "theirs" / "environment.json", {"python": "3"})
    before = names(runs)
    assert clean(runs, "run-5", "run.keep=0") == 0
    assert before - names(runs) == {"run-3", "run-4"}
    assert (runs / "run-1/model/onnx/model.onnx").read_text() == "mine"
    told = "is kept: it holds other files"
    assert f"run-0 {told} (notes.txt)" in caplog.text
    assert f"run-1 {told} (model/onnx/model.onnx)" in caplog.text
    assert f"run-2 {told} (notes.txt)" in caplog.text


def test_runs_of_models_that_are_kept_stay(runs, tmp_path):
    version = tmp_path / "served" / "versions" / "00001"
    version.mkdir(parents=True)
    storage.write_json(version / "promotion.json", {"run": str(runs / "run-2")})
    settings = [f"promotion.target={tmp_path / 'served'}", "run.keep=0"]
    assert clean(runs, "new", *settings) == 0
    assert names(runs) == {"run-2", "not-a-run", "link", "file"}


def test_a_run_that_a_job_works_on_stays(runs, caplog):
    with locks.held(runs / "run-0" / locks.LOCK_FILE, "train"):
        # A block has the locks of those around it in the same thread.
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(clean(runs, "run-5", "run.keep=0")))
        thread.start()
        thread.join(60)
    assert ended == [0]
    assert {"run-0", "run-5"} <= names(runs)
    assert "run-1" not in names(runs)
    assert "run-0 is kept: it is in use by `train`" in caplog.text


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    assert clean(tmp_path / "nowhere", "run") == 0
