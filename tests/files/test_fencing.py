"""A job that has lost its folder publishes nothing there any more, by whichever way it writes."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from pipelines.errors import PipelineError
from pipelines.files import locks, storage
from pipelines.files import owners as fencing
from pipelines.files.folders import work_folder
from pipelines.files.storage import LineLog


def build_file(path: Path) -> None:
    with storage.built_file(path) as file:
        file.write_text("late")


def build_folder(path: Path) -> None:
    with storage.built_folder(path) as folder:
        (folder / "file").write_text("late")


def build_new_folder(path: Path) -> None:
    with storage.new_folder(path, replace=False) as folder:
        (folder / "file").write_text("late")


WAYS = {
    "text": lambda path: storage.write_text(path, "late"),
    "json": lambda path: storage.write_json(path, {}, durable=True),
    "line": lambda path: storage.add_line(path, "late"),
    "log": lambda path: LineLog(path).add("late"),
    "file": build_file,
    "folder": build_folder,
    "new folder": build_new_folder,
}


@pytest.fixture
def lost(tmp_path, monkeypatch):
    """A folder that this job works in, and that another one takes over."""
    monkeypatch.setattr("pipelines.files.locks.PosixLockFiles.beat_seconds", 60.0)
    folder = tmp_path / "run"
    taken = pytest.raises(PipelineError, match="another process took over or removed")
    with taken, work_folder("run.folder", folder, "train"):
        storage.write_text(folder / "model" / "there", "in time")
        (folder / locks.LOCK_FILE).unlink()
        yield folder


@pytest.mark.parametrize("way", WAYS)
def test_nothing_appears_in_a_folder_that_was_taken_over(lost, way):
    with pytest.raises(PipelineError, match="another process took over or removed"):
        WAYS[way](lost / "late")
    assert sorted(path.name for path in lost.iterdir()) == ["model"]
    WAYS[way](lost.parent / "elsewhere")
    assert (lost.parent / "elsewhere").exists()


def test_nothing_goes_from_there(lost):
    with pytest.raises(PipelineError, match="another process took over or removed"):
        storage.remove_folder(lost / "model")
    assert (lost / "model" / "there").read_text() == "in time"


def test_all_threads_are_refused_and_no_child(lost):
    refused = []

    def write() -> None:
        try:
            storage.write_text(lost / "late", "late")
        except PipelineError as error:
            refused.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert len(refused) == 1
    # It is no holder of the lock, and has a fence of its own where it writes.
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(storage.write_text, (lost / "of a child", "a line"))


def test_a_fence_is_there_as_long_as_its_block(tmp_path):
    def refuse() -> None:
        raise PipelineError("it is another's")

    with fencing.fence(tmp_path / "run", refuse):
        storage.write_text(tmp_path / "running", "beside it")
        with pytest.raises(PipelineError, match="another's"):
            fencing.check_own(tmp_path / "run")
    fencing.check_own(tmp_path / "run")
