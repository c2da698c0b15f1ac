"""The folder that is served, with readers that look at any moment, and file systems that differ."""

import errno
import json
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_factory import IN_ORDER, names, write_model

from pipelines.errors import DamagedFileError, InputError, PipelineError
from pipelines.files.locations import RemotePath
from pipelines.models.identity import model_digest
from pipelines.promotion import served


def promote(target: Path, model: Path, **record) -> str:
    """What the stage does once the gate is open."""
    before = served.served_model(target)
    told = {
        "run": "run",
        "model_digest": model_digest(model),
        "replaces": before and before.name,
        **record,
    }
    with served.copied(target, model, told, {}) as copy, served.exclusive(target):
        version = served.place(target, copy)
        served.put_in_service(target, version, "promoted")
    return version


def promoted(folder: Path, contents: str) -> tuple[Path, Path]:
    """Promotes models of these contents; returns the target and the folder of the models."""
    target, model = folder / "served", folder / "model"
    for content in contents:
        promote(target, write_model(model, content))
    return target, model


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
    served.prune(target, keep=1)
    assert served.versions(target) == ["00002", "00005"]
    assert list(served.predecessors(target, "00005")) == ["00002"]
    lines = [json.loads(line) for line in (target / "history.jsonl").read_text().splitlines()]
    assert [(line["what"], line["before"], line["version"]) for line in lines[3:]] == [
        ("promoted", "00003", "00004"),
        ("rolled back", "00004", "00002"),
        ("promoted", "00002", "00005"),
    ]
    assert names(target) == IN_ORDER


@pytest.mark.slow
def test_a_reader_that_follows_the_link_once_sees_one_whole_model(tmp_path):
    target, _ = promoted(tmp_path, "0")
    done = threading.Event()

    def read() -> set[tuple[int, ...]]:
        seen = set()
        while not done.is_set():
            folder = served.served_model(target)
            assert folder is not None
            texts = [
                path.read_text()
                for path in folder.rglob("*")
                if path.name != "promotion.json" and path.is_file()
            ]
            seen.add((len(texts), *map(int, set(texts))))
        return seen

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for number in range(1, 40):
                promote(target, write_model(tmp_path / "model", str(number)))
        finally:
            done.set()
        seen = set().union(*(reader.result(120) for reader in readers))
    assert len(seen) > 1
    assert {length for length, *_ in seen} == {3}
    assert all(len(texts) == 1 for _, *texts in seen)


def test_a_number_is_given_once(tmp_path):
    target, model = promoted(tmp_path, "ab")
    served.put_in_service(target, "00001", "rolled back")
    shutil.rmtree(target / "versions" / "00002")
    assert promote(target, write_model(model, "c")) == "00003"


def test_versions_are_kept_as_far_as_they_are_in_service_or_were_before(tmp_path):
    target, _ = promoted(tmp_path, "abcd")
    served.put_in_service(target, "00001", "rolled back")
    served.prune(target, keep=0)
    assert served.versions(target) == ["00001", "00002", "00003", "00004"]
    served.put_in_service(target, "00003", "rolled back")
    served.prune(target, keep=1)
    assert served.versions(target) == ["00002", "00003", "00004"]


def test_what_no_promotion_has_written_stays(tmp_path, caplog):
    target, model = tmp_path / "served", tmp_path / "model"
    mine = ("1", "2", ".backup.old", ".copy.part", ".00001.old", "00003")
    for name in mine:
        (target / "versions" / name).mkdir(parents=True)
        (target / "versions" / name / "model.safetensors").write_text("mine")
    # A record of another tool.
    (target / "versions" / "2" / "promotion.json").write_text('{"name": "theirs"}')
    for content in "abcd":
        promote(target, write_model(model, content))
    assert served.served_name(target) == "00007"
    (target / "versions" / "00004" / "notes.txt").write_text("mine")
    served.prune(target, keep=1)
    assert names(target / "versions") == sorted([*mine, "00004", "00006", "00007"])
    assert "00004 is kept: it holds other files (notes.txt)" in caplog.text


def test_versions_with_files_of_the_hub_are_pruned(tmp_path):
    target, model = tmp_path / "served", tmp_path / "model"
    for content in "ab":
        write_model(model, content)
        for name in ("onnx/model.onnx", "pytorch_model.bin", ".gitattributes", ".git/objects/a"):
            (model / name).parent.mkdir(exist_ok=True, parents=True)
            (model / name).write_text(content)
        (model / "README.md").write_text(content)
        promote(target, model)
        version = target / "versions" / served.served_name(target)
        assert (version / "onnx" / "model.onnx").read_text() == content
        assert not {".git", ".gitattributes"} & {*names(version)}
    served.prune(target, keep=0)
    assert served.versions(target) == ["00002"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("current", "../mine"),
        ("history.jsonl", "what I did\non Monday\n"),
        ("history.jsonl", '{"step": 1}\n{"step": 2}\n'),
        ("versions", "1, 2, 3"),
        ("current", None),
    ],
)
def test_a_target_with_files_of_the_user_under_our_names_is_refused(tmp_path, name, content):
    target = tmp_path / "served"
    (target / "releases" / "7").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    if content is None:
        (target / name).symlink_to("releases/7")
    else:
        (target / name).write_text(content)
    before, found = (
        names(target),
        rf"^promotion\.target: {target / name} .*\. Move it elsewhere",
    )
    with pytest.raises(InputError, match=found):
        served.check_target(target)
    assert names(target) == before


@pytest.mark.slow
def test_a_lock_that_no_job_has_written_stays(tmp_path):
    target = tmp_path / "served"
    target.mkdir()
    (target / ".lock").write_text("do not touch")
    with (
        pytest.raises(InputError, match=r"\.lock has the name of a lock, and no job wrote it"),
        served.exclusive(target),
    ):
        pass
    assert (target / ".lock").read_text() == "do not touch"


def test_a_model_that_changes_while_it_is_copied_is_left_out(tmp_path):
    target, model = tmp_path / "served", write_model(tmp_path / "model", "a")
    record = {"model_digest": "of another content"}
    copied = served.copied(target, model, record, {})
    with pytest.raises(PipelineError, match="changed during its copy"), copied:
        pass
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
    assert names(target) == IN_ORDER


def test_refuses_what_no_promotion_has_written(tmp_path):
    (tmp_path / "current").mkdir()
    with pytest.raises(InputError, match=r"^promotion.target: .* is a folder, not a link"):
        served.served_model(tmp_path)
    (tmp_path / "current").rmdir()
    (tmp_path / "current").symlink_to("versions/00007")
    with pytest.raises(InputError, match=r"^promotion.target: .*/00007, which does not exist"):
        served.served_model(tmp_path)


def test_what_is_named_is_on_the_disk_before(tmp_path, monkeypatch):
    target, flushed, missing = tmp_path / "served", set(), []
    fsync, rename, replace = os.fsync, os.rename, os.replace

    def flushes(descriptor):
        fsync(descriptor)
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())

    def renames(given, to):
        # A lock that is let go has to be nowhere after a power cut.
        if Path(to).suffix != ".gone":
            missing.extend({given, *Path(given).rglob("*")} - flushed)
        rename(given, to)

    def replaces(given, to):
        if to == target / "current":
            missing.extend({target / "versions"} - flushed)
        if to == target / "history.jsonl":
            missing.extend({given, target} - flushed)
        replace(given, to)

    monkeypatch.setattr(os, "fsync", flushes)
    monkeypatch.setattr(os, "rename", renames)
    monkeypatch.setattr(os, "replace", replaces)
    promote(target, write_model(tmp_path / "model", "a"))
    assert missing == []
    assert len(flushed) >= 9


def test_a_promotion_keeps_its_own_copy_in_a_store_without_locks(tmp_path):
    target = RemotePath.parse(f"memory://{tmp_path.name}/served")
    promote(target, write_model(tmp_path / "model", "a"))
    assert served.versions(target) == ["00001"]
    copy = served.current(target)
    assert (copy / "config.json").read_text() == "a"


@pytest.mark.parametrize("replaced", ["00003", "00002"], ids=["itself", "each other"])
def test_records_that_replace_one_another_in_a_circle_come_to_an_end(tmp_path, replaced):
    target, _ = promoted(tmp_path, "abc")
    for version, before in (("00003", replaced), ("00002", "00003")):
        record = target / "versions" / version / "promotion.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"replaces": before}))
    expected = [] if replaced == "00003" else ["00002"]
    assert list(served.predecessors(target, "00003")) == expected
    served.prune(target, keep=9)
    assert served.versions(target) == [*expected, "00003"]


@pytest.mark.parametrize(
    "damage", ['{"replaces": 7}', "[]", '{"model": ', '{"figures": 1}', "\ud800"]
)
def test_a_damaged_record_is_named(tmp_path, damage):
    target, _ = promoted(tmp_path, "a")
    record = target / "versions" / "00001" / "promotion.json"
    record.write_bytes(damage.encode("utf-8", "surrogatepass"))
    with pytest.raises(DamagedFileError, match=f"^{re.escape(str(record))} is damaged "):
        served.read_record(record.parent)


def test_a_record_without_a_name_has_its_line_added_all_the_same(tmp_path):
    target, _ = promoted(tmp_path, "a")
    # What a process writes that is killed before it adds its line; `when` was lost with the file.
    (target / "history.jsonl").unlink()
    (target / "versions" / "00001" / "promotion.json").write_text('{"who": "a@b"}')
    with served.exclusive(target):
        pass
    (line,) = served.read_history(target)
    assert (line["what"], line["version"], line["who"]) == ("rolled back", "00001", None)


@pytest.mark.parametrize(
    "line",
    ["[" * 5000, "9" * 5000, '{"version": 4}', '{"version": "00001", "before": 3}', "\udcff"],
    ids=["deep", "long", "number", "before", "no text"],
)
def test_lines_of_the_history_that_are_none_are_passed_over(tmp_path, line):
    target, _ = promoted(tmp_path, "a")
    path = target / "history.jsonl"
    path.write_bytes(line.encode("utf-8", "surrogateescape") + b"\n" + path.read_bytes())
    assert [one["version"] for one in served.read_history(target)] == ["00001"]
    assert promote(target, write_model(tmp_path / "model", "b")) == "00002"
