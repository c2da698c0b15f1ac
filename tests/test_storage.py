"""Folders that are whole or not there."""

import subprocess
import sys

import pytest

from pipelines import storage

DIES_AT_THE_RENAME = """
import os, sys
from pathlib import Path
from pipelines import storage

place, dies_at, renames = Path(sys.argv[1]), int(sys.argv[2]), []
rename = Path.rename

def rename_or_die(path, target):
    renames.append(target)
    if len(renames) == dies_at:
        os._exit(9)
    return rename(path, target)

Path.rename = rename_or_die
with storage.new_folder(place) as folder:
    (folder / "second").write_text("2")
os._exit(len(renames))
"""


def write_half(path):
    with storage.new_folder(path) as folder:
        (folder / "half").write_text("x")
        raise OSError("disk full")


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "deep" / "stage"
    with pytest.raises(OSError, match="disk full"):
        write_half(path)
    assert list(path.parent.iterdir()) == []
    with storage.new_folder(path) as folder:
        (folder / "whole").write_text("1")
    with pytest.raises(OSError, match="disk full"):
        write_half(path)
    assert [p.name for p in path.iterdir()] == ["whole"]
    assert list(path.parent.iterdir()) == [path]


def test_a_new_folder_replaces_the_old_one(tmp_path):
    for name in ("first", "second"):
        with storage.new_folder(tmp_path / "stage") as folder:
            (folder / name).write_text(name)
    assert [p.name for p in (tmp_path / "stage").iterdir()] == ["second"]
    assert [p.name for p in tmp_path.iterdir()] == ["stage"]


def test_a_process_that_is_killed_leaves_one_of_both(tmp_path):
    """It is killed at each of its renames in turn, until it gets to its end."""
    path = tmp_path / "stage"
    for dies_at in range(1, 10):
        with storage.new_folder(path) as folder:
            (folder / "first").write_text("1")
        command = [sys.executable, "-c", DIES_AT_THE_RENAME, str(path), str(dies_at)]
        code = subprocess.run(command, timeout=60, check=False).returncode
        with pytest.raises(OSError, match="disk full"):
            write_half(path)
        assert [file.name for file in path.iterdir()] == ["first" if dies_at < 3 else "second"]
        assert list(tmp_path.iterdir()) == [path]
        if code != 9:
            break
    assert code == dies_at - 1 == 3


def test_json_survives(tmp_path):
    storage.write_json(tmp_path / "a.json", {"ö": [1, 2.5, None]})
    assert storage.read_json(tmp_path / "a.json") == {"ö": [1, 2.5, None]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
