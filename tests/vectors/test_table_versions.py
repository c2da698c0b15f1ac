"""Which table a job works on, and how a new one takes the place of another."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_rounds import embed_here, write_lake

from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.begun import next_folder
from pipelines.settings.load import parse
from pipelines.vectors.parts import RowRange
from pipelines.vectors.plan import Plan, choose_work, publish, read_version
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import INDEX_FOLDER, MANIFEST_FILE

IDENTITY = {
    "embedding.model": "aa",
    "embedding.inputs": [["lake"], {"files": []}],
    "embedding.format": "parquet",
    "embedding.text_column": "text",
    "embedding.output_column": "embedding",
    "embedding.prompt_name": None,
    "embedding.dimensions": None,
    "embedding.quantise": "none",
    "embedding.backend": "auto",
    "embedding.precision": "auto",
    "embedding.key_column": None,
}
KEYED = IDENTITY | {"embedding.key_column": "id"}
OTHER_MODEL = {"embedding.model": "bb"}
UNKNOWN = {"embedding.inputs": [["view"], None]}


def made(folder: Path, identity, *, whole: bool, build: int = 0) -> None:
    folder.mkdir()
    part = RowRange(f"part-{build:05d}-00000-00000", Path("/lake/a.parquet"), 0, 2)
    Plan(identity, "openvino", "fp32", (part,), build).write(folder)
    if whole:
        pq.write_table(pa.table({"text": ["a", "b"]}), folder / f"{part.name}.parquet")
        storage.write_json(folder / MANIFEST_FILE, {"build": build})


@pytest.mark.parametrize(
    ("whole", "begun", "wanted", "overwrite", "goes_on", "before"),
    [
        (None, None, IDENTITY, False, None, 0),
        (IDENTITY, None, IDENTITY, False, "table", 0),
        (IDENTITY, None, IDENTITY, True, None, 0),
        (IDENTITY, None, KEYED, False, None, 1),
        (KEYED, None, KEYED | OTHER_MODEL, False, None, 1),
        (KEYED, None, KEYED | OTHER_MODEL, True, None, 0),
        (KEYED | UNKNOWN, None, KEYED | UNKNOWN, False, None, 1),
        (None, IDENTITY, IDENTITY, False, ".table.next", 0),
        (None, IDENTITY, IDENTITY, True, ".table.next", 0),
        (None, KEYED, KEYED | OTHER_MODEL, False, None, 1),
        (IDENTITY, IDENTITY | OTHER_MODEL, IDENTITY | OTHER_MODEL, True, ".table.next", 0),
        (IDENTITY, IDENTITY | OTHER_MODEL, IDENTITY, False, "table", 0),
        (IDENTITY, IDENTITY | UNKNOWN, IDENTITY | UNKNOWN, False, ".table.next", 0),
        (KEYED, KEYED | OTHER_MODEL, KEYED | UNKNOWN, False, None, 2),
    ],
)
def test_what_a_job_is_to_do(tmp_path, whole, begun, wanted, overwrite, goes_on, before) -> None:
    folder = tmp_path / "table"
    if whole:
        made(folder, whole, whole=True, build=4)
    if begun:
        made(next_folder(folder), begun, whole=False, build=5)
    work = choose_work(folder, wanted, overwrite=overwrite)
    assert (work.goes_on and work.goes_on.folder.name) == goes_on
    assert len(work.before) == before
    assert [version.is_whole for version in work.before] == [True, False][:before] or not whole
    assert work.build == (6 if begun else 5 if whole else 0)


@pytest.mark.parametrize(
    ("known", "wanted", "message"),
    [
        (IDENTITY, OTHER_MODEL, r"embedding.model: .*/table was begun with another model. Restore"),
        (KEYED, IDENTITY, r"embedding.key_column: .* with `id`, not unset. Restore the setting"),
        (
            IDENTITY | UNKNOWN,
            UNKNOWN,
            r"embedding.inputs: it is unknown whether view has .* Set embedding",
        ),
    ],
)
def test_rows_without_keys_are_not_compared(tmp_path, known, wanted, message) -> None:
    made(tmp_path / "table", known, whole=True)
    with pytest.raises(InputError, match=f"^{message}"):
        choose_work(tmp_path / "table", IDENTITY | wanted, overwrite=False)


def test_a_new_table_takes_the_place_of_another(tmp_path) -> None:
    folder = tmp_path / "table"
    made(folder, IDENTITY, whole=True)
    made(next_folder(folder), IDENTITY, whole=True, build=1)
    kept = folder / "part-00000-00000-00000.parquet"
    (next_folder(folder) / kept.name).hardlink_to(kept)
    (folder / INDEX_FOLDER).mkdir()
    for name in ("index.json", f"{kept.stem}.usearch", "part-00000-00009-00000.usearch"):
        (folder / INDEX_FOLDER / name).write_text(name)
    version = read_version(next_folder(folder))
    plan = Plan(**{**vars(version.plan), "parts": (RowRange(kept.stem, Path("/lake/a"), 0, 2),)})
    publish(type(version)(version.folder, plan, True), folder)
    assert {path.name for path in tmp_path.iterdir()} == {"table"}
    assert read_version(folder).plan.build == 1
    index = {path.name for path in (folder / INDEX_FOLDER).iterdir()}
    assert index == {"index.json", f"{kept.stem}.usearch"}


# What there is afterwards, where names are exchanged and where they are not: builds by place.
BEFORE, EXCHANGED = {"table": 0, ".table.next": 1}, {"table": 1, ".table.next": 0}
KILLS = {
    "exchange": [(1, BEFORE), (2, EXCHANGED)],
    "renames": [(1, BEFORE), (2, BEFORE), (3, {"table": 1})],
}


@pytest.mark.parametrize(
    ("how", "at", "left"), [(how, *one) for how, kills in KILLS.items() for one in kills]
)
def test_a_job_killed_while_its_table_takes_its_place(tmp_path, monkeypatch, how, at, left) -> None:
    """At each of the renames: what is there is whole, and the new table is not lost."""
    folder = tmp_path / "table"
    made(folder, IDENTITY, whole=True)
    made(next_folder(folder), IDENTITY, whole=True, build=1)
    renames = []
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        renames.append(path)
        if len(renames) >= at:
            # Nothing that comes behind a SIGKILL is done, what would put things back included.
            raise KeyboardInterrupt
        return rename(path, target)

    def exchanged(path: Path, target: Path) -> bool:
        if how == "renames":
            return False
        renames.append(path)
        if len(renames) >= at:
            raise KeyboardInterrupt
        # What the system call does at once, which not every file system has.
        aside = tmp_path / "aside"
        for one, other in ((path, aside), (target, path), (aside, target)):
            rename(one, other)
        return True

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", killed)
        patched.setattr(storage, "_exchanged", exchanged)
        publish(read_version(next_folder(folder)), folder)
    storage.settle(folder)
    builds = {place.name: read_version(place).plan.build for place in tmp_path.iterdir()}
    assert builds == left
    work = choose_work(folder, IDENTITY, overwrite=False)
    assert work.goes_on is not None and work.goes_on.plan.build == 1
    publish(work.goes_on, folder)
    assert read_version(folder).plan.build == 1
    assert {path.name for path in tmp_path.iterdir()} == {"table"}


@pytest.fixture
def growing(small_model, tmp_path):
    """A table of two files, one of which has changed since; makes the configuration of its job."""

    def job(**settings):
        known = {
            "model": str(small_model),
            "inputs": [str(tmp_path / "lake")],
            "output": str(tmp_path / "table"),
            "precision": "fp32",
            "key_column": "id",
        }
        return parse({"embedding": known | settings})

    write_lake(tmp_path / "lake", {"a": [(1, "one"), (2, "two")], "b": [(3, "three")]})
    assert embed_here(job()) == 3
    write_lake(tmp_path / "lake", {"a": [(1, "one"), (2, "two")], "b": [(3, "3"), (1001, "new")]})
    return job


def test_parts_of_unchanged_files_are_linked(growing, tmp_path) -> None:
    first = tmp_path / "table" / "part-00000-00000-00000.parquet"
    inode = first.stat().st_ino
    assert embed_here(growing()) == 2
    assert first.stat().st_ino == inode
    names = sorted(path.name for path in (tmp_path / "table").glob("*.parquet"))
    assert names == [first.name, "part-00001-00000-00000.parquet"]
    table = open_table(tmp_path / "table")
    assert (table.key, table.rows) == ("id", 4)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.EXDEV])
def test_parts_are_copied_where_links_cannot_be(growing, tmp_path, monkeypatch, number) -> None:
    def refused(path: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "hardlink_to", refused)
    first = tmp_path / "table" / "part-00000-00000-00000.parquet"
    inode, content = first.stat().st_ino, first.read_bytes()
    assert embed_here(growing()) == 2
    assert first.stat().st_ino != inode
    assert first.read_bytes() == content


def test_settings_that_change_the_files_and_not_the_vectors(growing, tmp_path) -> None:
    assert embed_here(growing(output_column="v")) == 2
    assert pq.read_table(tmp_path / "table").column_names == ["id", "text", "v"]
    assert embed_here(growing(output_column="v", part_rows=1)) == 0
    # It is the backend that `auto` stood for.
    backend = read_version(tmp_path / "table").plan.backend
    assert embed_here(growing(output_column="v", backend=backend)) == 0
    assert embed_here(growing(output_column="v", dimensions=8)) == 4
    assert open_table(tmp_path / "table").dimensions == 8


def test_what_an_unfinished_table_has_of_unchanged_files_is_kept(growing, tmp_path) -> None:
    home = next_folder(tmp_path / "table")
    embed_here(growing(output=str(tmp_path / "other")))
    (tmp_path / "other").rename(home)
    (home / MANIFEST_FILE).unlink()
    replace(read_version(home).plan, build=1).write(home)
    files = {"a": [(1, "one"), (2, "two")], "b": [(3, "3"), (1001, "new")], "c": [(7, "seven")]}
    write_lake(tmp_path / "lake", files)
    assert embed_here(growing()) == 1
    assert pq.read_table(tmp_path / "table").num_rows == 5
