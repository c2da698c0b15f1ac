"""The script that builds Horovod, where it cannot: in environments of nothing but versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "environment" / "build_horovod.py"

needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("c++", "make", "git")))
    or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="without the tools of the build nothing is tried",
)


@pytest.fixture
def environment(tmp_path) -> Path:
    """An environment with torch and TensorFlow by name; without pip, no build gets far."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    install(folder, "torch", "2.13.0")
    install(folder, "tensorflow", "2.21.0")
    return folder


def install(environment: Path, package: str, version: str) -> None:
    """Puts the name and the version of a package into an environment."""
    site = next(environment.glob("lib/python*/site-packages"))
    for old in site.glob(f"{package}-*.dist-info"):
        shutil.rmtree(old)
    metadata = site / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def build(environment: Path, *arguments: str, **variables: str) -> str:
    """Runs the script, which has to say in one line why there is no Horovod; gives the line."""
    done = subprocess.run(
        [environment / "bin" / "python", SCRIPT, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": str(cache(environment))} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("warning: engine horovod will be unavailable, all else works: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def cache(environment: Path) -> Path:
    return environment.parent / "cache"


def logs(environment: Path) -> list[Path]:
    return sorted(cache(environment).glob("sentence-pipelines/wheels/horovod-*/build-*.log"))


def test_without_a_compiler_it_says_what_to_install(environment):
    said = build(environment, CXX="/nowhere/c++")
    assert "misses the C++ compiler /nowhere/c++" in said
    assert "g++" in said
    assert not cache(environment).exists()


@needs_tools
def test_a_build_that_failed_is_tried_again_only_when_asked(environment):
    said = build(environment)
    assert f"failed, see {logs(environment)[0]}. `make horovod` tries again" in said
    assert build(environment) == said
    assert len(logs(environment)) == 1
    build(environment, "--again")
    assert len(logs(environment)) == 2


@needs_tools
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: install(folder, "torch", "2.13.1"),
        lambda folder: {"HOROVOD_GPU_OPERATIONS": "NCCL"},
    ],
    ids=["version", "option"],
)
def test_another_version_or_option_is_another_wheel_and_another_try(environment, change):
    build(environment)
    build(environment, **(change(environment) or {}))
    assert len({log.parent for log in logs(environment)}) == 2


@needs_tools
def test_variables_of_a_run_do_not_change_the_wheel(environment):
    said = build(environment)
    assert build(environment, HOROVOD_LOG_LEVEL="debug") == said


def test_an_environment_without_the_frameworks_is_told_so(environment):
    for folder in environment.glob("lib/python*/site-packages/torch-*"):
        shutil.rmtree(folder)
    assert "torch. Install requirements.lock first" in build(environment)
