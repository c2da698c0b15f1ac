"""Folders that are whole or not there."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
import time
from functools import partial

import pytest
from namespaces import UNSHARE, can_unshare

from pipelines.files import storage

DIES_AT_THE_RENAME = """
import os, sys
from pathlib import Path
from pipelines.files import storage

place, dies_at, renames = Path(sys.argv[1]), int(sys.argv[2]), []
rename, exchanged = Path.rename, storage._exchanged

def or_die(act, path, target):
    renames.append(target)
    if len(renames) == dies_at:
        os._exit(9)
    return act(path, target)

Path.rename = lambda path, target: or_die(rename, path, target)
if sys.argv[3] == "at once":
    storage._exchanged = lambda path, target: or_die(exchanged, path, target)
else:
    storage._renameat2 = lambda: None
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


@pytest.fixture(scope="session")
def exchanges(tmp_path_factory) -> bool:
    """Whether names are exchanged here: not by every kernel, nor on every file system."""
    folder = tmp_path_factory.mktemp("exchange")
    for name in ("a", "b"):
        (folder / name).mkdir()
    return storage._exchanged(folder / "a", folder / "b")


@pytest.mark.parametrize(("how", "renames"), [("at once", 2), ("one by one", 3)])
def test_a_process_that_is_killed_leaves_one_of_both(tmp_path, how, renames, exchanges):
    """It is killed at each of its renames in turn, until it gets to its end."""
    if how == "at once" and not exchanges:
        pytest.skip("no two names are exchanged here")
    path = tmp_path / "stage"
    for dies_at in range(1, 10):
        with storage.new_folder(path) as folder:
            (folder / "first").write_text("1")
        command = [sys.executable, "-c", DIES_AT_THE_RENAME, str(path), str(dies_at), how]
        code = subprocess.run(command, timeout=60, check=False).returncode
        with pytest.raises(OSError, match="disk full"):
            write_half(path)
        assert [file.name for file in path.iterdir()] == [
            "first" if dies_at < renames else "second"
        ]
        assert list(tmp_path.iterdir()) == [path]
        if code != 9:
            break
    assert code == dies_at - 1 == renames


READS = """
import sys
from pathlib import Path

folder, stop, missed = Path(sys.argv[1]), Path(sys.argv[2]), 0
print("begun", flush=True)
while not stop.exists():
    try:
        missed += (folder / "file").read_text() not in ("old", "new")
    except FileNotFoundError:
        missed += 1
print(missed)
"""


def test_a_reader_by_path_never_misses_a_folder_that_is_replaced(tmp_path, exchanges):
    if not exchanges:
        pytest.skip("no two names are exchanged here")
    path, stop = tmp_path / "table", tmp_path / "stop"
    for text in ("old", "new"):
        with storage.new_folder(path) as folder:
            (folder / "file").write_text(text)
    command = [sys.executable, "-c", READS, str(path), str(stop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout.readline() == "begun\n"
        for number in range(500):
            with storage.new_folder(path) as folder:
                (folder / "file").write_text("old" if number % 2 else "new")
        stop.touch()
        assert reader.stdout.readline() == "0\n"
    assert sorted(tmp_path.iterdir()) == [stop, path]


@pytest.mark.parametrize("error", [None, "ENOSYS", "EINVAL"])
def test_a_new_folder_replaces_the_old_one_whether_names_are_exchanged(
    tmp_path, monkeypatch, error
):
    def refuse(*_arguments):
        ctypes.set_errno(getattr(errno, error))
        return -1

    if error is not None:
        monkeypatch.setattr(storage, "_renameat2", lambda: refuse)
    for name in ("first", "second"):
        with storage.new_folder(tmp_path / "stage") as folder:
            (folder / name).write_text(name)
    assert [file.name for file in (tmp_path / "stage").iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir()] == ["stage"]


HOLDS_A_PART = """
import sys, time
from pathlib import Path
from pipelines.files import storage

with storage.new_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("x")
    print("begun", flush=True)
    time.sleep(60)
"""


def begun(path, *before):
    """A process that is writing a folder."""
    command = [*before, sys.executable, "-c", HOLDS_A_PART, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def write_whole(path):
    with storage.new_folder(path) as folder:
        (folder / "whole").write_text("1")


def test_what_a_living_process_writes_is_left_to_it(tmp_path):
    path = tmp_path / "stage"
    with begun(path) as other:
        write_whole(path)
        assert len(list(tmp_path.glob(".stage.*.part/half"))) == 1
        other.kill()
        other.wait()
        write_whole(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a namespace")
def test_what_is_written_in_another_namespace_is_abandoned_after_a_day_of_silence(tmp_path):
    """Whether its process is there cannot be known from here: no process here has its number."""
    path = tmp_path / "stage"
    with begun(path, *UNSHARE, "--kill-child") as other:
        write_whole(path)
        (half,) = tmp_path.glob(".stage.*.part/half")
        other.kill()
        other.wait()
    write_whole(path)
    assert half.exists()
    long_ago = time.time() - storage.ABANDONED_SECONDS - 60
    os.utime(half.parent, (long_ago, long_ago))
    write_whole(path)
    assert half.exists(), "a file in it is newer"
    os.utime(half, (long_ago, long_ago))
    os.utime(half.parent, (long_ago, long_ago))
    write_whole(path)
    assert list(tmp_path.iterdir()) == [path]


def test_where_nobody_else_works_all_is_swept(tmp_path):
    """Of owners elsewhere too, and what had made room comes back; what is not ours stays."""
    for name, suffix in (("lanes", ".part"), ("lanes", ".gone"), ("tokens", ".old")):
        (tmp_path / f".{name}.0123456789ab-1-2-0a1b2c3d{suffix}").mkdir()
        (tmp_path / f".{name}.0123456789ab-1-2-0a1b2c3d{suffix}" / "file").write_text(suffix)
    (tmp_path / ".stage.json.0123456789ab-1-2-0a1b2c3d.part").write_text("{")
    (tmp_path / ".download.mine.part").write_text("of somebody else")
    storage.sweep(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"tokens", "tokens/file", ".download.mine.part"}


NO_APPEND = """
import errno, os, sys
from pathlib import Path
from pipelines.files import storage

def refuse(event, arguments):
    if event == "open" and arguments[2] & os.O_APPEND:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

sys.addaudithook(refuse)
for number in range(3):
    storage.add_line(Path(sys.argv[1]), str(number))
"""


@pytest.mark.parametrize("grows", [True, False])
def test_lines_are_added_where_files_cannot_grow_too(tmp_path, grows):
    code = NO_APPEND if not grows else NO_APPEND.replace("sys.addaudithook(refuse)", "")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lines")], check=True, timeout=60)
    assert (tmp_path / "lines").read_text() == "0\n1\n2\n"
    assert len(list(tmp_path.iterdir())) == 1


BUSY = """
import errno, os, sys
from pathlib import Path
from pipelines.files import storage

def refuse(event, arguments):
    if event in ("os.rmdir", "os.remove") and ".gone" in str(arguments[0]):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

sys.addaudithook(refuse)
place = Path(sys.argv[1], "step")
for text in ("first", "second"):
    with storage.new_folder(place) as folder:
        (folder / "file").write_text(text)
print((place / "file").read_text())
storage.remove_folder(place)
print(place.exists())
"""


def test_what_somebody_reads_may_stay_for_a_while_and_is_swept_later(tmp_path):
    """NFS cannot remove a folder with a file that is open."""
    command = [sys.executable, "-c", BUSY, str(tmp_path)]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "second\nFalse\n"
    assert len(list(tmp_path.glob(".step.*.gone"))) == 2
    storage.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_json_survives_and_half_of_a_surrogate_pair_too(tmp_path):
    for value in ({"ö": [1, 2.5, None]}, {"name": "é", "text": "\ud800"}):
        storage.write_json(tmp_path / "a.json", value)
        assert storage.read_json(tmp_path / "a.json") == value
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    storage.write_json(tmp_path / "b.json", {"name": "é"})
    assert "é" in (tmp_path / "b.json").read_text(encoding="utf-8")


def test_a_copied_folder_on_a_full_disk_raises_its_first_error(tmp_path, monkeypatch):
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / name).write_text(name)

    def copy2(file: str, copy: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), copy)

    monkeypatch.setattr(shutil, "copytree", partial(shutil.copytree, copy_function=copy2))
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: '.*copy/[ab]'$"):
        storage.copy_folder(tmp_path / "source", tmp_path / "copy")
