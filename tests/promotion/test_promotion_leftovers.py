"""What killed promotions leave: each step is the last of some process, and the next one mends."""

import errno
import json
import os
import shutil
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from forks import forks
from run_factory import IN_ORDER, content_of, names, settings, write_run

import pipelines
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.promotion import served
from pipelines.promotion.stage import promote, roll_back

pytestmark = pytest.mark.slow

KILLED = 9
TURN = ("open", "mkdir", "fsync", "symlink", "replace", "unlink")
COPY = ("sendfile", "rename")
PRUNE = ("rmdir",)


@pytest.fixture
def folders():
    """A folder in memory where there is one: writing through costs nothing there."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def die_at(step: str, count: int, what, *args) -> None:
    """Does something and dies right before that call of the operating system; in a fork."""
    real, calls = getattr(os, step), 0

    def call(*args, **options):
        nonlocal calls
        calls += 1
        if calls == count:
            os._exit(KILLED)
        return real(*args, **options)

    setattr(os, step, call)
    what(*args)


@pytest.fixture(scope="module")
def killed():
    """Whether a child that does something was killed at a step; it may have none so many times."""
    with forks() as exit_code:

        def was_killed(step: str, count: int, what, *args) -> bool:
            code = exit_code(die_at, step, count, what, *args)
            assert code in (0, KILLED)
            return code == KILLED

        yield was_killed


def each_kill(killed, step: str, folders: Path, prepare, what):
    """Yields a folder for each call of the step at which a process was killed."""
    for count in range(1, 200):
        folder = folders / str(count)
        prepare(folder)
        was_killed = killed(step, count, what, folder)
        yield folder
        if not was_killed:
            assert count > 1
            return
    raise AssertionError(f"{step} has no end")


def run(folder: Path, content: str) -> str:
    written = write_run(folder / content, content)
    return promote(settings(folder / "served", written, keep=1)).version.name


def promote_c(folder: Path) -> None:
    run(folder, "c")


def go_back(folder: Path) -> None:
    roll_back(settings(folder / "served"))


def promote_two(folder: Path) -> None:
    run(folder, "a")
    run(folder, "b")


@pytest.fixture(scope="module")
def copy_two(tmp_path_factory):
    """Makes a folder what those promotions leave."""
    kept = tmp_path_factory.mktemp("two") / "kept"
    promote_two(kept)
    return partial(shutil.copytree, kept, symlinks=True)


def turns(target: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (target / "history.jsonl").read_text().splitlines()]
    befores = [line["before"] for line in lines]
    assert befores == [None, *(line["version"] for line in lines[:-1])]
    contents = {"00001": "a", "00002": "b"}
    return [(line["what"], contents.get(line["version"], "c")) for line in lines]


def assert_in_order(target: Path) -> None:
    assert names(target) == IN_ORDER
    assert names(target / "versions") == served.versions(target)


@pytest.mark.parametrize("step", TURN + COPY + PRUNE)
def test_a_promotion_killed_at_any_step_is_made_by_the_next(killed, step, folders, copy_two):
    outcomes = set()
    for folder in each_kill(killed, step, folders, copy_two, promote_c):
        target = folder / "served"
        found = served.served_model(target)
        outcomes.add(content_of(found))
        version = run(folder, "c")
        # What is in service by then is not made anew.
        assert content_of(found) == "b" or found.name == version
        assert content_of(served.served_model(target)) == "c"
        verdict = storage.read_json(folder / "c" / "promotion.json")
        assert (verdict["promoted"], verdict["version"]) == (True, version)
        assert turns(target) == [("promoted", "a"), ("promoted", "b"), ("promoted", "c")]
        assert all(line["who"] and line["when"] for line in served.read_history(target))
        assert_in_order(target)
        kept = [content_of(target / "versions" / name) for name in served.versions(target)]
        assert kept == ["b", "c"]
        assert content_of(roll_back(settings(target))) == "b"
        assert turns(target)[-1] == ("rolled back", "b")
    assert "c" in outcomes
    assert outcomes <= {"b", "c"}


# The matrix has those that are the same calls as in a later promotion.
FIRST = [
    pytest.param(step, marks=[] if step in ("mkdir", "symlink", "replace") else pytest.mark.matrix)
    for step in TURN + COPY
]


@pytest.mark.parametrize("step", FIRST)
def test_a_first_promotion_killed_at_any_step_is_made_by_the_next(killed, step, folders):
    for folder in each_kill(killed, step, folders, Path.mkdir, promote_c):
        target = folder / "served"
        found = served.served_model(target)
        assert found is None or content_of(found) == "c"
        version = run(folder, "c")
        assert found is None or found.name == version
        assert [line["version"] for line in served.read_history(target)] == [version]
        assert_in_order(target)
        assert content_of(target / "current") == "c"
        run(folder, "d")
        assert content_of(roll_back(settings(target))) == "c"


@pytest.mark.parametrize("step", TURN)
def test_a_way_back_killed_at_any_step_may_be_gone_again(killed, step, folders, copy_two):
    outcomes = set()
    for folder in each_kill(killed, step, folders, copy_two, go_back):
        target = folder / "served"
        outcomes.add(content_of(served.served_model(target)))
        assert roll_back(settings(target), "00001").name == "00001"
        happened = [turn for turn, _ in groupby(turns(target))]
        assert happened == [("promoted", "a"), ("promoted", "b"), ("rolled back", "a")]
        assert_in_order(target)
        assert run(folder, "c") == "00003"
    assert outcomes <= {"a", "b"}
    assert "a" in outcomes


def test_what_was_left_by_promotions_of_any_host_is_removed(tmp_path):
    promote_two(tmp_path)
    target = tmp_path / "served"
    for name in (".00002.elsewhere-7-0a1b2c3d.old", ".00009.elsewhere-1-0a1b2c3d.part"):
        (target / "versions" / name / "1_Pooling").mkdir(parents=True)
        (target / "versions" / name / "config.json").write_text("half")
    (target / ".current.0a1b2c3d.part").symlink_to("versions/00009")
    (target / ".history.jsonl.0a1b2c3d.part").write_text("{")
    go_back(tmp_path)
    assert_in_order(target)


@pytest.mark.parametrize(
    "torn", ["{", '{"when": "2026-01-01T00:00', '{"version": "00002", "before']
)
def test_a_torn_line_gives_way_to_the_next(tmp_path, torn):
    promote_two(tmp_path)
    target = tmp_path / "served"
    path = target / "history.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(first + torn)
    run(tmp_path, "c")
    kept = path.read_text().splitlines(keepends=True)
    assert kept[0] == first
    # The time is the record's, by which the copy was begun: a second earlier, it may be.
    assert json.loads(kept[1]) | {"when": ""} == json.loads(second) | {"when": ""}
    assert turns(target)[2:] == [("promoted", "c")]


def test_a_line_that_lacks_but_its_end_is_kept(tmp_path):
    promote_two(tmp_path)
    path = tmp_path / "served" / "history.jsonl"
    before = path.read_text()
    path.write_text(before.rstrip("\n"))
    run(tmp_path, "c")
    assert path.read_text().startswith(before)
    assert len(turns(tmp_path / "served")) == 3


def test_a_link_turned_by_hand_is_noted_by_nobody(tmp_path):
    promote_two(tmp_path)
    target = tmp_path / "served"
    (target / "current").unlink()
    (target / "current").symlink_to("versions/00001")
    run(tmp_path, "c")
    noted = served.read_history(target)[2]
    assert (noted["what"], noted["before"], noted["version"]) == ("rolled back", "00002", "00001")
    assert noted["who"] is None
    assert noted["when"] >= served.read_history(target)[1]["when"]


def test_a_full_disk_is_told_in_one_line_with_the_setting(tmp_path, monkeypatch):
    run, target = write_run(tmp_path / "run", "new"), tmp_path / "served"

    def copy2(file: Path, copy: Path) -> None:
        copy.write_text("half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copy))

    monkeypatch.setattr(shutil, "copy2", copy2)
    with pytest.raises(InputError) as caught:
        pipelines.promote(settings(target, run))
    assert str(caught.value) == (
        f"promotion.target: {target} is full (No space left on device). "
        "Make room, or name another folder."
    )
    assert not list((target / "versions").iterdir())
