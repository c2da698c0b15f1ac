"""Folders of jobs: what each must be able to do, and one job at a time."""

import os
import subprocess
import sys
from contextvars import Context
from pathlib import Path

import pytest

from pipelines.errors import InputError, PipelineError
from pipelines.files.folders import check_able, check_place, check_room, work_folder, working_in
from pipelines.files.locks import held
from pipelines.settings.load import parse

# A mount that refuses some calls of the system, as the hooks of Python see them.
CANNOT = """
import errno, os, sys
from pathlib import Path
from pipelines.errors import InputError
from pipelines.files.folders import check_able

folder, calls, number = Path(sys.argv[1]), sys.argv[2].split(","), getattr(errno, sys.argv[3])

def refuse(event, arguments):
    if event in calls and str(arguments[0]).startswith(str(folder)):
        spared = event == "os.rename" and not Path(arguments[0]).is_dir() and "files" not in calls
        if not spared and not (event == "open" and not arguments[2] & os.O_WRONLY):
            raise OSError(number, os.strerror(number))
    if event == "mmap.__new__" and "mmap" in calls:
        raise OSError(number, os.strerror(number))

sys.addaudithook(refuse)
try:
    check_able("run.folder", folder)
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("calls", "number", "told"),
    [
        ("none", "EIO", ""),
        ("os.rename", "ENOSYS", "{} is on a file system that cannot rename folders (Function"),
        ("os.rename,files", "ENOSYS", "{} is on a file system that cannot rename files (Function"),
        ("mmap", "ENODEV", "{} is on a file system that cannot map files into memory (No such"),
        ("os.mkdir", "EACCES", "this user cannot write to {} (Permission denied). Let this user"),
        ("os.mkdir", "EROFS", "this user cannot write to {} (Read-only file system). Let this"),
        ("open", "ENOSPC", "{} is full (No space left on device). Make room"),
        ("open", "EDQUOT", "{} is full (Disk quota exceeded). Make room"),
    ],
)
def test_what_a_folder_cannot_do_is_named(tmp_path, calls, number, told):
    command = [sys.executable, "-c", CANNOT, str(tmp_path), calls, number]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    if not told:
        assert said == ""
    else:
        assert said.startswith(f"run.folder: {told.format(tmp_path)}")
        assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


FULL = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from pipelines.spark.errors import file_failures
from pipelines.files.folders import check_able, check_room

def write_weights():
    with file_failures("training"):
        save_file({"weight": np.zeros(10**6, np.float32)}, str(folder / "weights"))

folder = Path(sys.argv[1])
actions = (
    lambda: check_room("run.folder", folder, 10**6, "the first checkpoints"),
    write_weights,
    lambda: (folder / "all").write_bytes(bytes(10**6)),
    lambda: check_able("run.folder", folder),
)
for act in actions:
    try:
        act()
    except Exception as error:
        print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_full_is_named(tmp_path):
    """A real one, of 64 kB, that is there for this process alone."""
    script = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "mount" in found.stderr or "unshare" in found.stderr:
        pytest.skip(f"nothing can be mounted here: {found.stderr}")
    room, weights, _, full = found.stdout.splitlines()
    assert weights.startswith("training failed: ")
    assert weights.endswith("(os error 28); make room on the disk, and run it again")
    assert room.startswith(f"run.folder: {tmp_path} has room for 0 MB, and the first checkpoints")
    assert full.startswith(f"run.folder: {tmp_path} is full (No space left on device). Make room")


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with (
            pytest.raises(InputError, match=r"^run\.folder: .*/file is a file\. Name a folder\.$"),
            work_folder("run.folder", path, "train"),
        ):
            pass


def test_there_is_room(tmp_path):
    check_able("run.folder", tmp_path)
    check_room("run.folder", tmp_path, 1000, "the first checkpoints")
    with pytest.raises(InputError, match=r"^run\.folder: .* has room for \d+ MB, and all of it ta"):
        check_room("run.folder", tmp_path, 10**18, "all of it")


def test_a_place_is_looked_at_and_not_made(tmp_path):
    check_place("promotion.target", tmp_path / "served" / "models")
    assert not list(tmp_path.iterdir())
    (tmp_path / "served").write_text("")
    told = r"^promotion\.target: .*/served is a file\. Name a folder\.$"
    with pytest.raises(InputError, match=told):
        check_place("promotion.target", tmp_path / "served" / "models")


@working_in("run.folder", reading=("prepared.folder",))
def job(config, fails=False):
    """Does nothing in its folders."""
    if fails:
        raise InputError("run.folder", "refused", "otherwise")
    Path(config.run.folder, "done").write_text("x")


def test_a_job_that_fails_leaves_no_folder_that_it_made(tmp_path):
    config = parse({"run": {"folder": str(tmp_path / "runs" / "first")}})
    with pytest.raises(InputError, match="refused"):
        job(config, fails=True)
    assert not list(tmp_path.iterdir())
    job(config)
    assert [path.name for path in (tmp_path / "runs" / "first").iterdir()] == ["done"]


def test_two_jobs_in_one_folder(tmp_path):
    run, prepared = tmp_path / "run", tmp_path / "prepared"
    config = parse({"run": {"folder": str(run)}, "prepared": {"folder": str(prepared)}})
    run.mkdir()
    prepared.mkdir()
    us = rf"process {os.getpid()} on .*, since 20.*\. Wait for its end, or name another folder\.$"
    with held(run / ".lock", "train"):
        told = rf"^run\.folder: {run} is in use by `train`, {us}"
        with pytest.raises(PipelineError, match=told) as refused:
            Context().run(job, config)
        assert not isinstance(refused.value, InputError)
        job(config)
    with held(prepared / ".lock", "prepare"):
        told = rf"^prepared\.folder: {prepared} is in use by `prepare`, {us}"
        with pytest.raises(PipelineError, match=told):
            Context().run(job, config)
    with held(prepared / ".lock", "train", shared=True):
        Context().run(job, config)
