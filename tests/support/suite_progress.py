"""Tells, while the tests run, what they are at, what has failed, and how long the rest may take.

What is left is reckoned by what the files took when they were last recorded, see
:mod:`suite_order`, at the speed that this run has had so far.
"""

from __future__ import annotations

import ast
import time
from collections import Counter

import pytest
from suite_order import TESTS, FileCost, file_of, known_costs

EVERY_SECONDS = 30.0
LEAST_SECONDS = 0.005
"""Of a test, where its file is not recorded."""
TRUSTED_SECONDS = 60.0
"""How long the speed of the recorded run counts against that of this one."""


def subject_of(file: str) -> str:
    """What a file of tests is about: the first sentence of its docstring."""
    text = ast.get_docstring(ast.parse((TESTS / file).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]


def one_line(report: pytest.TestReport) -> str:
    """How the message of a failure begins."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return lines[0][:200] if lines else "no message"


class SuiteProgress:
    """What has run, and what is left. One per run, in the process that shows the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # Of the quick tests of a file, nobody knows how much of its time they take.
        self._known: dict[str, FileCost] = {} if config.getoption("--quick") else known_costs()
        self._testers = 0
        self._left: Counter[str] = Counter()
        self._weights: dict[str, float] = {}
        self._expected = 0.0
        self._total = self._done = self._failed = 0
        self._running: dict[str, None] = {}
        self._began = self._told = time.monotonic()

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._expect([item.nodeid for item in session.items])

    def _expect(self, nodes: list[str]) -> None:
        """Spreads what each file is known to take over its tests. Called once by each tester."""
        self._testers += 1
        self._left = Counter(map(file_of, nodes))
        self._total = len(nodes)
        self._weights = {
            file: max(self._seconds_of(file) / count, LEAST_SECONDS)
            for file, count in self._left.items()
        }
        self._expected = self._seconds_left()
        self._began = self._told = time.monotonic()
        if self._testers == 1 and self._expected > TRUSTED_SECONDS:
            minutes = self._expected / (self._config.getoption("numprocesses", 1) or 1) / 60
            self._say(f"{self._total:,} tests, which took {minutes:.0f} min last time")

    def _seconds_of(self, file: str) -> float:
        return self._known[file].seconds if file in self._known else 0.0

    def _seconds_left(self) -> float:
        return sum(self._weights[file] * count for file, count in self._left.items())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[file_of(nodeid)] = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        if report.failed:
            self._failed += 1
            self._say(f"FAILED ({report.when}) {report.nodeid}: {one_line(report)}", red=True)
        if report.when != "teardown":
            return
        self._done += 1
        self._left[file] -= 1
        if not self._left[file]:
            self._running.pop(file, None)
        if time.monotonic() - self._told >= EVERY_SECONDS:
            self._told = time.monotonic()
            self._tell()

    def _tell(self) -> None:
        elapsed, left = time.monotonic() - self._began, self._seconds_left()
        done = self._expected - left
        trusted = TRUSTED_SECONDS if self._known else 0.0
        speed = (done + trusted * self._testers) / (elapsed + trusted)
        self._say(
            f"{elapsed / 60:.1f} min: {self._done:,} of {self._total:,} tests, "
            f"{self._failed} failed, about {left / speed / 60:.0f} min left",
            *(f"    {file}: {subject_of(file)}" for file in self._running),
        )

    def _say(self, *lines: str, **markup: bool) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        if self._config.pluginmanager.has_plugin("dsession"):
            # Of the testers' results, the terminal knows no line that it has begun.
            terminal.write("\n")
        for line in lines:
            terminal.write_line(line, **markup)
