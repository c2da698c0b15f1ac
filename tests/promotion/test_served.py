"""The folder that is served, with readers that look at any moment, and file systems that differ."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from pipelines import storage
from pipelines.errors import InputError, PipelineError
from pipelines.promotion import served


def promote(target: Path, model: Path, **record) -> str:
    """What the stage does once the gate is open."""
    before = served.served_model(target)
    version = served.next_version(target)
    told = {"model": storage.digest_folder(model), "replaces": before and before.name, **record}
    served.place(target, version, model, told)
    served.put_in_service(target, version, "promoted")
    return version


def write_model(folder: Path, content: str) -> Path:
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "1_Pooling/config.json", "model.safetensors"):
        (folder / name).write_text(content)
    return folder


def test_current_leads_to_the_newest_version_and_back(tmp_path):
    target, model = tmp_path / "served", tmp_path / "model"
    assert served.served_model(target) is None
    for content in "abcd":
        promote(target, write_model(model, content))
    assert served.served_model(target) == target / "versions" / "00004"
    assert (target / "current" / "1_Pooling" / "config.json").read_text() == "d"
    assert list(served.predecessors(target, "00004")) == ["00003", "00002", "00001"]
    served.put_in_service(target, "00002", "rolled back")
    assert (target / "current" / "config.json").read_text() == "b"
    promote(target, write_model(model, "e"))
    served.prune(target, "00005", keep=1)
    assert served.versions(target) == ["00002", "00005"]
    assert list(served.predecessors(target, "00005")) == ["00002"]
    lines = [json.loads(line) for line in (target / "history.jsonl").read_text().splitlines()]
    assert [(line["what"], line["before"], line["version"]) for line in lines[3:]] == [
        ("promoted", "00003", "00004"),
        ("rolled back", "00004", "00002"),
        ("promoted", "00002", "00005"),
    ]
    assert sorted(path.name for path in target.iterdir()) == [
        "current",
        "history.jsonl",
        "versions",
    ]


def test_a_reader_that_follows_the_link_once_sees_one_whole_model(tmp_path):
    target = tmp_path / "served"
    promote(target, write_model(tmp_path / "model", "0"))
    done, seen = threading.Event(), set()

    def read() -> None:
        while not done.is_set():
            folder = served.served_model(target)
            assert folder is not None
            texts = [
                path.read_text()
                for path in folder.rglob("*")
                if path.name != "promotion.json" and path.is_file()
            ]
            seen.add((len(texts), *set(texts)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 40):
        promote(target, write_model(tmp_path / "model", str(number)))
    done.set()
    for reader in readers:
        reader.join(30)
    assert len(seen) > 1
    assert {length for length, *_ in seen} == {3}
    assert all(len(texts) == 1 for _, *texts in seen)


def test_of_two_promotions_at_a_time_one_is_told(tmp_path):
    target, model = tmp_path / "served", write_model(tmp_path / "model", "a")
    record = {"model": storage.digest_folder(model)}
    version = served.next_version(target)
    served.place(target, version, model, record)
    with pytest.raises(PipelineError, match="taken by another promotion, run it again"):
        served.place(target, version, model, record)
    assert [path.name for path in (target / "versions").iterdir()] == [version]
    assert served.served_model(target) is None


def test_a_model_that_changes_while_it_is_copied_is_left_out(tmp_path):
    target, model = tmp_path / "served", write_model(tmp_path / "model", "a")
    with pytest.raises(PipelineError, match="has changed while it was copied"):
        served.place(target, "00001", model, {"model": "of another content"})
    assert list((target / "versions").iterdir()) == []


def test_where_there_are_no_links_a_file_names_the_version(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "symlink", refuse)
    target = tmp_path / "served"
    for content in "ab":
        promote(target, write_model(tmp_path / "model", content))
    assert (target / "current").read_text() == "versions/00002\n"
    assert served.served_model(target) == target / "versions" / "00002"
    assert served.served_name(target) == "00002"
    assert sorted(path.name for path in target.iterdir()) == [
        "current",
        "history.jsonl",
        "versions",
    ]


def test_refuses_what_no_promotion_has_written(tmp_path):
    (tmp_path / "current").mkdir()
    with pytest.raises(InputError, match=r"^promotion.target: .* is a folder, not a link"):
        served.served_model(tmp_path)
    (tmp_path / "current").rmdir()
    (tmp_path / "current").symlink_to("versions/00007")
    with pytest.raises(InputError, match=r"^promotion.target: .*/00007, which is not there"):
        served.served_model(tmp_path)
