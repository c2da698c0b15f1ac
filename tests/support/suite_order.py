"""In which order the files of tests run, and which tester runs them.

``tests/seconds.json`` has, for each file, the seconds that it took and the executors that it needs,
as of the last whole run with ``--record-seconds``. Testers that share the files out end together if
the long ones come first, and a cluster that has lost executors need not start them again.

The last tester starts no cluster: it runs files that need none, many of which mostly wait, beside
the others, who compute.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parents[1]
RECORD = TESTS / "seconds.json"
EXECUTORS_OF_FILE = "executors"
"""The property of a test's report that has them."""


@dataclass(frozen=True)
class FileCost:
    """What a file of tests took when it was last recorded.

    Attributes:
        seconds: Of the clock, in one tester.
        executors: Of the tester's cluster; 0 if it uses none.
    """

    seconds: float
    executors: int


def file_of(node: str) -> str:
    """The path, below the folder of the tests, of the file that a test stands in."""
    return node.partition("::")[0].removeprefix("tests/")


def known_costs() -> dict[str, FileCost]:
    """The record, by the paths of files."""
    lines = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {file: FileCost(*cost) for file, cost in lines.items()}


def ordered(
    items: Sequence[pytest.Item], executors_for: Callable[[pytest.Item], int]
) -> list[pytest.Item]:
    """The tests, file by file; within a file, their order stays."""
    costs = known_costs()
    executors: dict[str, int] = defaultdict(int)
    for item in items:
        file = file_of(item.nodeid)
        executors[file] = max(executors[file], executors_for(item))

    def place(item: pytest.Item) -> tuple[int, float, str]:
        file = file_of(item.nodeid)
        seconds = costs[file].seconds if file in costs else 0.0
        return -executors[file], -seconds, file

    for item in items:
        item.user_properties.append((EXECUTORS_OF_FILE, executors[file_of(item.nodeid)]))
    return sorted(items, key=place)


class CostRecorder:
    """Writes the record at the end of a run without failures."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._executors: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        self._executors[file] = dict(report.user_properties).get(EXECUTORS_OF_FILE, 0)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == 0:
            lines = (
                f"{json.dumps(file)}: [{self._seconds[file]:.1f}, {self._executors[file]}]"
                for file in sorted(self._seconds)
            )
            RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


class SharedOut(LoadFileScheduling):
    """Gives each tester whole files, in their order; the last one, if there are several, the files
    that need no cluster.
    """

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_apart(node) and not self._file_without_cluster() and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._is_apart(node):
            file = self._file_without_cluster()
            if file is None:
                return
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _is_apart(self, node: WorkerController) -> bool:
        last = self.numnodes - 1
        return last > 0 and node.workerinput["workerid"] == f"gw{last}"

    @cached_property
    def _without_cluster(self) -> set[str]:
        return {file for file, cost in known_costs().items() if not cost.executors}

    def _file_without_cluster(self) -> str | None:
        found = (file for file in self.workqueue if file_of(file) in self._without_cluster)
        return next(found, None)
