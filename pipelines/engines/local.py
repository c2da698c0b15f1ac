"""The reference engine: one process on the driver's machine, no Spark.

Its loss curve is the reference for every synchronous engine. A separate process keeps the framework
out of the driver, and the memory and threads of one run out of the next.
"""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Engine, Mode, monitor_for
from pipelines.errors import WorkerLostError
from pipelines.libraries import check_installed
from pipelines.runs.run import TrainingOutcome, TrainingRun, WorkerTask
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config
from pipelines.training.control.monitor import GRACE_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXIT_SECONDS = 10.0


class LocalEngine(Engine):
    """Trains in a single child process of the driver."""

    name = "local"
    best_for = "one machine; no Spark needed"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The reference loss curve for all other engines.",
            choose_when="One machine is enough, or you have no Spark.",
            needs="Nothing.",
        )
    }
    frameworks = ("tensorflow", "torch")

    @override
    def workers(self, config: Config) -> int:
        return 1

    @override
    def check_libraries(self, config: Config) -> None:
        check_installed("training.engine", config.training.framework)

    @override
    def check(self, session: SparkSession | None, config: Config) -> None:
        if config.training.workers != 1:
            logger.info("engine local trains in one process and ignores training.workers")
        self.check_libraries(config)

    @override
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        monitor = monitor_for(self.name, run, step_metrics, "127.0.0.1", workers=1)
        task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
        process = subprocess.Popen(
            [sys.executable, "-c", "from pipelines.engines.local import main; main()"],
            stdin=subprocess.PIPE,
            # Out of the terminal's reach: only the driver gets a ctrl-c, and ends the run in order.
            start_new_session=True,
        )
        try:
            with monitor:
                assert process.stdin is not None
                # The wait below reports a child that has died already.
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pickle.dump(task, pipe)
                return monitor.wait(_Watch(process).failure)
        finally:
            _end(process)


def main() -> None:
    """Run the child process, with its task from standard input."""
    from pipelines.training.loop import run_worker

    task: WorkerTask = pickle.load(sys.stdin.buffer)
    sys.exit(0 if run_worker(task) else 1)


class _Watch:
    """Detects a dead process without a connection to the monitor; the monitor sees the others."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._dead_since: float | None = None

    def failure(self) -> WorkerLostError | None:
        """Return the error, after the time for the monitor to see the end of a connection."""
        code = self._process.poll()
        if code in (None, 0):
            return None
        now = time.monotonic()
        self._dead_since = self._dead_since or now
        if now - self._dead_since < GRACE_SECONDS:
            return None
        cause = f"the worker's process died (exit code {code})"
        host = socket.gethostname()
        return WorkerLostError("local", cause, began=False, rank=0, host=host, lane=0)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
