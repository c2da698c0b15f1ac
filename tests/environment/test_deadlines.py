"""Commands of the scripts that pack: all of them end, with one line where that is too late."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import build_horovod
import psutil
import pytest
from deadlines import ended
from errors import PackageError


def test_a_command_says_what_it_has_said_and_how_it_ended(tmp_path):
    done = ended(["sh", "-c", "echo out; echo error >&2; exit 4"])
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "error\n", 4)
    assert ended(["sh", "-c", "echo $WORD"], env={"WORD": "x"}).stdout == "x\n"
    with (tmp_path / "log").open("w") as log:
        ended(["sh", "-c", "echo out; echo error >&2"], log=log)
    assert (tmp_path / "log").read_text() == "out\nerror\n"


@pytest.mark.parametrize("waits", ["wait", "exit 0"], ids=["late", "in time"])
def test_what_a_command_has_started_ends_with_it(tmp_path, waits):
    script = f"sleep 300 >/dev/null 2>&1 & echo $! > {tmp_path}/number; {waits}"
    began = time.monotonic()
    if waits == "wait":
        with pytest.raises(PackageError, match=r"^sh -c .* has not ended after 0\.5 s$") as told:
            ended(["sh", "-c", script], 0.5)
        assert "\n" not in str(told.value)
    else:
        ended(["sh", "-c", script], 60)
    left = int((tmp_path / "number").read_text())
    while psutil.pid_exists(left) and psutil.Process(left).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() - began < 30
        time.sleep(0.02)


def test_a_long_command_is_shown_in_a_line():
    with pytest.raises(PackageError) as told:
        ended([sys.executable, "-c", f"import time\ntime.sleep(60)\n{'#' * 500}"], 0.1)
    assert len(str(told.value)) < 150
    assert "\n" not in str(told.value)


def test_pip_that_does_not_end_is_told_of_in_a_line(monkeypatch):
    pytest.importorskip("isal")
    import build_package

    monkeypatch.setattr(build_package, "PIP_SECONDS", 0.01)
    with pytest.raises(PackageError, match=r"-m pip .* has not ended after 0\.01 s$"):
        build_package.run_pip(["list"])


@pytest.fixture
def waiting(tmp_path) -> Path:
    """A program that does not end."""
    path = tmp_path / "waiting"
    path.write_text("#!/bin/sh\nsleep 300\n")
    path.chmod(0o755)
    return path


def test_a_compiler_that_does_not_end_is_told_of_in_a_line(waiting, monkeypatch):
    if not all(map(shutil.which, ("make", "git"))):
        pytest.skip("without the tools of the build it is not asked")
    monkeypatch.setenv("CXX", str(waiting))
    monkeypatch.setattr(build_horovod, "MOMENT", 0.2)
    with pytest.raises(build_horovod.BuildError, match=r" has not ended after 0\.2 s"):
        build_horovod.compiler()


def test_a_step_of_the_build_that_does_not_end_names_its_log(waiting, tmp_path, monkeypatch):
    monkeypatch.setattr(build_horovod, "PIP", (waiting,))
    monkeypatch.setattr(build_horovod, "PIP_SECONDS", 0.2)
    target = build_horovod.Target({}, {}, tmp_path)
    said = r"^downloading its source has not ended after 0\.2 s, see .*build\.log$"
    with (
        (tmp_path / "build.log").open("w") as log,
        pytest.raises(build_horovod.BuildError, match=said),
    ):
        build_horovod.compiled_wheel(tmp_path, target, log)
