"""The reference: one process on the driver's machine, no Spark.

Every synchronous engine must give this engine's loss curve. A process of its own keeps the
framework out of the driver, and the memory and threads of one run out of the next.
"""

from __future__ import annotations

import logging
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Engine, Mode, OnMetrics, monitor_for
from pipelines.engines.libraries import check_framework
from pipelines.errors import EngineError
from pipelines.runs.run import TrainingOutcome, TrainingRun, WorkerTask
from pipelines.settings import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXIT_SECONDS = 10.0


class LocalEngine(Engine):
    """Trains in a single child process of the driver."""

    name = "local"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The reference: its loss curve is what the other engines are held to.",
            choose_when="One machine is enough, or there is no Spark.",
            needs="Nothing.",
        )
    }
    frameworks = ("tensorflow", "torch")

    @override
    def check_libraries(self, config: Config) -> None:
        check_framework(config.training.framework)

    @override
    def check(self, session: SparkSession | None, config: Config) -> None:
        if config.training.workers != 1:
            logger.info("engine local trains in one process; training.workers is ignored")
        self.check_libraries(config)

    @override
    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        monitor = monitor_for(self.name, run, on_metrics, "127.0.0.1", workers=1)
        task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
        process = subprocess.Popen(
            [sys.executable, "-c", "from pipelines.engines.local import main; main()"],
            stdin=subprocess.PIPE,
            # An interrupt from the keyboard is for the driver, which ends the run in order.
            start_new_session=True,
        )
        try:
            with monitor:
                assert process.stdin is not None
                # The wait notices a child that has died already.
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pickle.dump(task, pipe)
                return monitor.wait(lambda: _failure_of(process))
        finally:
            _end(process)


def main() -> None:
    """The child process: reads its task from standard input, which its parent wrote."""
    from pipelines.training.worker import run_worker

    task: WorkerTask = pickle.load(sys.stdin.buffer)
    sys.exit(0 if run_worker(task) else 1)


def _failure_of(process: subprocess.Popen[bytes]) -> EngineError | None:
    """The error of a process that died before it could report one itself."""
    code = process.poll()
    if code in (None, 0):
        return None
    cause = f"the worker's process died (exit code {code})"
    return EngineError("local", cause, rank=0, host=socket.gethostname(), lane=0)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
