"""Folders that are whole or not there."""

import pytest

from pipelines import storage


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


def test_json_survives(tmp_path):
    storage.write_json(tmp_path / "a.json", {"ö": [1, 2.5, None]})
    assert storage.read_json(tmp_path / "a.json") == {"ö": [1, 2.5, None]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
