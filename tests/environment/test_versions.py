"""The environments of other releases: what is in them, what runs there, what is told of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import versions
from errors import PackageError
from versions import Environment, Part

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS, PARTS = versions.read_list(versions.LIST.read_text())
LOCK = """# A comment
a-b==1.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
C.d==2 \\
    --hash=sha256:cc
e==3 \\
    --hash=sha256:dd
"""
REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.spark.test_a" name="test_one"/>
<testcase classname="tests.spark.test_a" name="test_two"><failure>x</failure></testcase>
<testcase classname="tests.spark.test_a" name="test_two"><error>x</error></testcase>
<testcase classname="tests.sparkling" name="test_one"/>
<testcase classname="tests.engines.test_b" name="test_it[torch]"/>
<testcase classname="tests.engines.test_b" name="test_it[torch-ddp]"><skipped/></testcase>
</testsuite></testsuites>"""


def test_releases_are_put_in_the_place_of_others():
    own = "# Another\nc-d==4 \\\n    --hash=sha256:ee\n"
    assert versions.merged(LOCK, own, ["E"]) == (
        "a-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "c-d==4 \\\n    --hash=sha256:ee\n"
    )


# Spark 3.5's wheel has no server of Spark Connect, so that its environment needs no client either.
OF_CONNECT = {"googleapis-common-protos", "grpcio-status"}


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: one.name)
def test_an_environment_changes_and_lacks_what_the_lock_has(environment):
    locked = {name for name, _ in versions.blocks((ROOT / "requirements.lock").read_text())}
    assert {*environment.without} <= locked
    own = (ROOT / "environment" / environment.lock).read_text() if environment.lock else ""
    changed = [name for name, _ in versions.blocks(own)]
    assert {*changed} - OF_CONNECT <= locked
    assert "--hash=" in own or not environment.lock


def test_every_engine_has_a_part_and_every_part_has_tests():
    from engine_cases import ENGINE_CASES

    from pipelines.catalog import ENGINES

    assert {*ENGINES} <= {part.name for part in PARTS}
    cases = {versions.CONTRACT.format(case=case.name) for case in ENGINE_CASES}
    for part in PARTS:
        assert part.tests
        for test in part.tests:
            assert test in cases if "::" in test else (ROOT / test).exists()


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        (["tests/spark"], {"passed": 1, "failed": 2, "skipped": 0}),
        (["tests/spark/test_a.py"], {"passed": 1, "failed": 2, "skipped": 0}),
        (["tests/engines/test_b.py::test_it[torch]"], {"passed": 1, "failed": 0, "skipped": 0}),
        (["tests/engines/test_b.py"], {"passed": 1, "failed": 0, "skipped": 1}),
    ],
)
def test_tests_are_counted_by_part(tests, expected):
    assert versions.counts(REPORT, Part("one", tuple(tests))) == expected


def test_the_page_tells_of_every_environment_and_part():
    table = versions.PAGE.read_text()
    assert [name for name in (one.name for one in ENVIRONMENTS) if name not in table] == []
    assert [part.name for part in PARTS if f"| **{part.name}** |" not in table] == []
    assert "failed" not in table
    assert versions.notes() in table


def test_a_cell_tells_what_happened_to_the_tests():
    assert versions.cell({"passed": 3, "failed": 0, "skipped": 1}) == "3 passed, 1 skipped"
    assert versions.cell({"passed": 0, "failed": 2, "skipped": 0}) == "2 failed"


def test_a_page_tells_what_is_not_there_and_what_did_not_run():
    versions_of = dict.fromkeys(("python", "java", *versions.PACKAGES), "1")
    ran = {"packages": versions_of, "parts": {"torch": "1 passed"}}
    parts = [Part("torch", ()), Part("bigdl", (), "bigdl")]
    lines = versions.page({"one": ran, "two": {}}, parts).splitlines()
    assert {"| | one | two |", "| pyspark | 1 | not run |"} <= {*lines}
    assert {"| **torch** | 1 passed | not run |", "| **bigdl** | not installed | not run |"} <= {
        *lines
    }


def test_a_python_is_taken_that_is_of_the_release(tmp_path, monkeypatch):
    old, fitting = tmp_path / "old", tmp_path / "fitting"
    for program, release in ((old, "3.8"), (fitting, "3.77")):
        program.write_text(f"#!/bin/sh\necho {release}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PYTHONS", f"{old} {fitting}")
    assert versions.interpreter("3.77") == str(fitting)


def test_a_python_that_is_not_there_is_named(monkeypatch):
    monkeypatch.delenv("PYTHONS", raising=False)
    with pytest.raises(PackageError, match=r"there is no Python 3\.77 with venv: install it, or"):
        versions.interpreter("3.77")


def test_an_environment_that_is_not_listed_is_refused(capsys):
    assert versions.main(["Python 2"]) == 2
    assert "there is no Python 2, name some of Python 3.12, Spark 3.5; " in capsys.readouterr().err


def test_an_environment_that_cannot_be_made_does_not_hide_the_others(monkeypatch, tmp_path, capsys):
    good, bad = Environment("good", "g", "3.11"), Environment("bad", "b", "3.12")
    monkeypatch.setattr(versions, "read_list", lambda text: ([bad, good], PARTS))
    monkeypatch.setattr(versions, "RESULTS", tmp_path)

    def make(environment):
        if environment is bad:
            raise PackageError("no room")
        return Path(sys.executable)

    known = dict.fromkeys(("python", "java", *versions.PACKAGES), "1")
    found = {"packages": known, "parts": {"torch": "1 passed, 1 failed"}, "failed": True}
    monkeypatch.setattr(versions, "PAGE", tmp_path / "versions.md")
    monkeypatch.setattr(versions, "make", make)
    monkeypatch.setattr(versions, "run_tests", lambda *_: found)
    assert versions.main([]) == 2
    told = capsys.readouterr()
    assert "good: torch: 1 passed, 1 failed" in told.out
    assert "error: no room" in told.err
    assert "| **torch** | not run | 1 passed, 1 failed |" in versions.PAGE.read_text()


def test_tests_that_do_not_run_are_no_result(monkeypatch, tmp_path):
    monkeypatch.setattr(versions, "RESULTS", tmp_path)
    nothing = Part("nothing", ("tests/no_such_file.py",))
    here = Environment("here", ".", "3.11")
    with pytest.raises(PackageError, match=r"here: pytest ended with exit code 4"):
        versions.run_tests(here, Path(sys.executable), [nothing])


def test_make_takes_another_python_and_lock():
    """Make prints what it would do, and does nothing."""
    arguments = ["VENV=/nowhere/venv", "PYTHON=python3.12", "LOCK=/dev/null", "HOROVOD=0"]
    done = subprocess.run(
        ["make", "--dry-run", "environment", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert '"python3.12" -m venv /nowhere/venv' in done.stdout
    assert "/nowhere/venv --require-hashes --no-deps -r /dev/null" in done.stdout
    assert ".venv/" not in done.stdout
