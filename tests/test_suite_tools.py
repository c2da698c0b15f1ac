"""What the tests say of themselves: how far they are, and what other processes printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from failure_logs import last_lines
from suite_order import RECORD, TESTS, known_costs
from suite_progress import subject_of

PLUGINS = """
from failure_logs import FailureLogs
from suite_progress import SuiteProgress

def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true")
    parser.addoption("--record-seconds", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(FailureLogs())
    config.pluginmanager.register(SuiteProgress(config))
"""
FAILING = """
import subprocess, sys

def test_that_reads_a_result(tmp_path):
    (tmp_path / "worker.log").write_text("began\\n\\tat Frame.of(Java)\\nrank 1 has no memory\\n")
    raise AssertionError("no result")

def test_that_waits_for_a_command():
    program = "import sys; print('the lane is damaged'); sys.exit(3)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
"""


@pytest.mark.slow
def test_a_failure_shows_at_once_what_other_processes_printed(tmp_path):
    (tmp_path / "conftest.py").write_text(PLUGINS)
    (tmp_path / "test_failing.py").write_text(FAILING)
    variables = {"PYTHONPATH": str(Path(__file__).parent / "support"), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "rank 1 has no memory" in done.stdout
    assert "\tat Frame.of" not in done.stdout
    assert "the lane is damaged" in done.stdout
    told = "FAILED (call) test_failing.py::test_that_reads_a_result: AssertionError: no result"
    assert told in done.stdout.partition("= FAILURES =")[0]


def test_only_what_was_printed_since_is_shown(tmp_path):
    log = tmp_path / "stderr"
    log.write_text("of the test before\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log, before).splitlines() == [f"line {n}" for n in range(75, 100)]
    assert last_lines(tmp_path / "gone") == ""


def test_what_is_known_of_files_is_of_files_that_exist():
    assert RECORD.exists()
    assert [file for file in known_costs() if not (TESTS / file).exists()] == []


def test_each_file_says_what_it_is_about():
    files = [str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")]
    assert [file for file in files if not subject_of(file)] == []
