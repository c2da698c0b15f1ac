"""Locks: one holder, on whichever host and in whichever container, and none that is dead."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace

import pytest
from namespaces import UNSHARE, can_unshare

from pipelines.errors import PipelineError
from pipelines.files import locks
from pipelines.files.locks import Holder, LockedError, check_held, held, held_here
from pipelines.files.owners import Owner
from pipelines.training.control.authenticated_server import UNHEARD_SECONDS
from pipelines.training.control.reporter import HEARTBEAT_SECONDS

HOLDS = """
import sys, time
from pathlib import Path
from pipelines.files.locks import held

with held(Path(sys.argv[1]), "train", shared=len(sys.argv) > 2):
    print("held", flush=True)
    time.sleep(60)
"""
ELSEWHERE = replace(Holder.here("train"), host="elsewhere", owner="0123456789ab-1-2", key="a" * 32)


def other(path, *arguments, before=()):
    """Another process that holds the lock, and has said so."""
    command = [*before, sys.executable, "-c", HOLDS, str(path), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_is_held_by_another_process_until_it_dies(tmp_path):
    with other(tmp_path / ".lock") as process:
        told = rf"in use by `train`, process {process.pid} on .*, since 20\d\d-.*\+00:00$"
        with pytest.raises(LockedError, match=told), held(tmp_path / ".lock", "evaluate"):
            pass
        process.kill()
        process.wait()
        with held(tmp_path / ".lock", "evaluate"):
            assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a namespace")
def test_a_living_holder_in_another_namespace_of_processes_keeps_it(tmp_path):
    """Its number is that of no process here, and ours that of none there."""
    path = tmp_path / ".lock"
    with held(path, "evaluate"):
        command = [*UNSHARE, sys.executable, "-c", HOLDS, str(path)]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"in use by `evaluate`, process {os.getpid()} on" in refused.stderr
    with other(path, before=(*UNSHARE, "--kill-child")) as process:
        with pytest.raises(LockedError), held(path, "evaluate"):
            pass
        process.kill()


def test_a_holder_elsewhere_that_stands_still_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.PosixLockFiles, "beat_seconds", 0.1)
    monkeypatch.setattr(locks, "SILENT_SECONDS", 1.0)
    path = tmp_path / ".lock"
    path.write_text(json.dumps(asdict(ELSEWHERE)))
    began = time.monotonic()
    taken = pytest.raises(PipelineError, match="another process took over or removed")
    with taken, held(path, "evaluate") as lock:
        assert time.monotonic() - began >= 1.0
        lock.check()
        # This process stood still in its turn, and somebody else came.
        path.write_text(json.dumps(asdict(replace(ELSEWHERE, key="b" * 32))))
    assert "b" * 32 in path.read_text()


@pytest.mark.parametrize("content", [b"mine", b'{"pid": 7}', b"\xff", b"[1]", b"7"])
@pytest.mark.parametrize("name", [".lock", f".lock.{'a' * 32}"])
def test_a_file_that_no_job_has_written_is_no_lock(tmp_path, content, name):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(locks.ForeignLockError), held(tmp_path / ".lock", "train"):
        pass
    assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_files_with_names_like_those_of_locks_stay(tmp_path):
    mine = sorted(tmp_path / name for name in (".lock.txt", "..lock.mine.gone", "..lock.old.part"))
    for file in mine:
        file.write_text("mine")
    with held(tmp_path / ".lock", "train"):
        pass
    assert sorted(tmp_path.iterdir()) == mine


def test_a_lock_that_is_lost_is_noticed_at_once_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.PosixLockFiles, "beat_seconds", 60.0)
    path = tmp_path / ".lock"
    taken = pytest.raises(PipelineError, match="another process took over or removed")
    with taken, held(path, "evaluate") as lock:
        lock.check()
        path.unlink()
        with pytest.raises(PipelineError, match="another process took over or removed"):
            lock.check()
        with pytest.raises(PipelineError, match="another process took over or removed"):
            check_held()


def test_workers_end_before_the_lock_of_their_run_is_taken_over():
    beats = locks.StoreLockFiles.beat_seconds + HEARTBEAT_SECONDS
    assert UNHEARD_SECONDS + 5 * beats <= locks.SILENT_SECONDS


@pytest.mark.parametrize("further", [{"more": 1}, {"job": None}], ids=["more", "something else"])
def test_a_file_that_changes_is_not_taken_over_whatever_it_holds(tmp_path, monkeypatch, further):
    monkeypatch.setattr(locks, "SILENT_SECONDS", 10.0)
    path, done = tmp_path / ".lock", threading.Event()
    path.write_bytes(b"")

    def change() -> None:
        beat = 0
        while not done.wait(0.2):
            beat += 1
            told = {**asdict(replace(ELSEWHERE, beat=beat)), **further}
            content = json.dumps({key: value for key, value in told.items() if value is not None})
            path.write_text(content)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        with pytest.raises(LockedError, match="in use by"), held(path, "evaluate"):
            pass
        assert path.exists()
    finally:
        done.set()
        thread.join(120)


FULL = """
import errno, os, sys, time
from pathlib import Path
from pipelines.files import locks

locks.PosixLockFiles.beat_seconds = 0.1
path, is_full = Path(sys.argv[1]), sys.argv[2] == "from the start"
with locks.held(path.with_name("first"), "train"):
    while not is_full and '"beat": 1' not in path.with_name("first").read_text():
        time.sleep(0.05)
    disk = path.with_name("first" if not is_full else ".lock")
    # As on a disk that is full: files can be made, and take no bytes.
    room = open("/dev/full", "wb", 0)
    real = Path.write_bytes, Path.open
    def full(self, *arguments, **options):
        file = real[1](self, *arguments, **options)
        if arguments and arguments[0] in ("wb", "xb"):
            os.dup2(room.fileno(), file.fileno())
        return file
    Path.open = full
    try:
        if is_full:
            with locks.held(path, "train"):
                print("held")
        else:
            time.sleep(1)
    except OSError as error:
        print(errno.errorcode[error.errno])
    Path.open = real[1]
    print(disk.exists() and disk.stat().st_size > 0)
"""


@pytest.mark.parametrize(
    ("when", "told"), [("from the start", "ENOSPC\nFalse\n"), ("later", "True\n")]
)
def test_on_a_full_disk_no_empty_file_is_left(tmp_path, when, told):
    command = [sys.executable, "-c", FULL, str(tmp_path / ".lock"), when]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said == told
    assert not list(tmp_path.iterdir())


HIDDEN = """
import os, sys
from pipelines.files.owners import Owner

other = Owner.parse(sys.argv[1])
assert other.is_gone() is False
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(other.is_gone())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("hidden", [1, 2])
def test_where_other_users_are_hidden_a_living_process_is_not_taken_for_gone(hidden):
    script = f'mount -t proc -o hidepid={hidden} proc /proc && exec "$0" -c "$1" "$2"'
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, HIDDEN, str(Owner.here())]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "mount" in found.stderr or "unshare" in found.stderr:
        pytest.skip(f"nothing can be mounted here: {found.stderr}")
    assert found.stdout == "None\n", found.stderr


def test_a_file_that_holds_nothing_is_taken_over_too(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "SILENT_SECONDS", 0.5)
    (tmp_path / ".lock").write_bytes(b"")
    with held(tmp_path / ".lock", "train"):
        pass
    assert not list(tmp_path.iterdir())


def test_many_share_it_and_one_alone_excludes_them(tmp_path):
    path = tmp_path / ".lock"
    with other(path, "shared") as process:
        with held(path, "train", shared=True):
            pass
        with pytest.raises(LockedError, match=f"process {process.pid}"), held(path, "prepare"):
            pass
        process.kill()
        process.wait()
        with held(path, "prepare"):
            pass
    with other(path) as process:
        with pytest.raises(LockedError), held(path, "train", shared=True):
            pass
        process.kill()
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_the_block_around_has_it_and_another_thread_has_not(tmp_path):
    path = tmp_path / ".lock"
    refused: list[Exception] = []

    def try_it() -> None:
        try:
            with held(path, "train"):
                pass
        except LockedError as error:
            refused.append(error)

    with held(path, "run") as outer:
        with held(path, "train") as inner:
            assert inner is outer
            assert held_here() == (outer,)
        assert path.exists()
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert len(refused) == 1
    assert held_here() == ()
    assert not path.exists()


def test_one_waits_for_it(tmp_path):
    path = tmp_path / ".lock"
    with ExitStack() as stack:
        stack.enter_context(held(path, "promote"))
        taken: list[str] = []

        def wait_for_it() -> None:
            with held(path, "rollback", wait_seconds=30.0):
                taken.append("rollback")

        thread = threading.Thread(target=wait_for_it)
        thread.start()
        time.sleep(0.3)
        assert not taken
        stack.close()
        thread.join(120)
    assert taken == ["rollback"]


def test_of_many_at_once_one_comes_in(tmp_path):
    """Each that comes in sees nobody else inside."""
    count = """
import sys
from pathlib import Path
from pipelines.files.locks import held

folder = Path(sys.argv[1])
for _ in range(20):
    with held(folder / ".lock", "count", wait_seconds=60.0):
        number = int((folder / "number").read_text())
        (folder / "number").write_text(str(number + 1))
"""
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", count, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert (tmp_path / "number").read_text() == "80"
