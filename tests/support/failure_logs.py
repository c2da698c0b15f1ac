"""Adds to a test that fails what the processes beside it printed while it ran.

An assertion sees what reached the driver. Why a worker ended stands in the log of its executor, in
that of Spark's driver, in a log file of a run, or in the output of a command.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAST_LINES = 25
OF_NO_USE = ("\tat ", "WARNING: sun.reflect.Reflection")
"""How lines begin that say nothing: the frames of Java, of which an error has dozens."""
MOST_BYTES = 20_000
SIZES = pytest.StashKey[dict[Path, int]]()
OF_RUNS = ("*.log", "stderr", "stdout")
"""Files below a test's own folder that processes print to."""


class FailureLogs:
    """Reads the logs that have grown since a test began. One per process that runs tests."""

    def __init__(self) -> None:
        self._shared: list[Path] = []

    def watch_cluster(self, session: SparkSession) -> None:
        """Reads the logs of a session on this machine too: of its driver and of its executors."""
        system = session.sparkContext._jvm.System
        self._shared = [
            Path(system.getProperty("sentence.pipelines.log")),
            Path(system.getenv("SPARK_HOME")) / "work",
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[SIZES] = {path: path.stat().st_size for path in self._cluster_logs()}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report = yield
        if report.failed:
            error = call.excinfo.value if call.excinfo else None
            report.sections += [*outputs_of(error), *self._grown(item)]
        return report

    def _cluster_logs(self) -> Iterator[Path]:
        for place in self._shared:
            yield from [place] if place.is_file() else place.glob("*/*/std*")

    def _grown(self, item: pytest.Item) -> Iterator[tuple[str, str]]:
        """A heading and the last lines of each log in which something was printed."""
        before = item.stash.get(SIZES, {})
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        own = [path for name in OF_RUNS for path in folder.rglob(name)] if folder else []
        for path in (*self._cluster_logs(), *own):
            if lines := last_lines(path, before.get(path, 0)):
                yield f"last lines of {path}", lines


def outputs_of(error: BaseException | None) -> Iterator[tuple[str, str]]:
    """What a command printed that failed or was too slow, also where its error has a cause."""
    seen: list[BaseException] = []
    # Some libraries raise an error from itself.
    while error is not None and error not in seen:
        seen.append(error)
        if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
            for stream, said in (("output", error.stdout), ("errors", error.stderr)):
                text = said.decode(errors="replace") if isinstance(said, bytes) else said
                if text:
                    yield f"{stream} of {error.cmd}", the_last_of(text)
        error = error.__cause__ or error.__context__


def last_lines(path: Path, after: int = 0) -> str:
    """The last lines of a file behind a place in it; nothing where it is gone."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(min(after, end), end - MOST_BYTES))
            return the_last_of(file.read().decode(errors="replace"))
    except OSError:
        return ""


def the_last_of(text: str) -> str:
    """The last lines that say something."""
    lines = [line for line in text.splitlines() if not line.startswith(OF_NO_USE)]
    return "\n".join(lines[-LAST_LINES:])
