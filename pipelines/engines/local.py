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

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.conf import ConfRule
from pipelines.errors import EngineError, EngineUnavailable
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXIT_SECONDS = 10.0
# The extra that installs each framework.
EXTRAS = {"tensorflow": "local", "torch": "torch"}


class LocalEngine:
    """Trains in a single child process of the driver."""

    name = "local"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The reference: its loss curve is what the other engines are held to.",
            choose_when="One machine is enough, or there is no Spark.",
            needs="Nothing.",
        )
    }
    frameworks = tuple(EXTRAS)
    feeds = ("lanes", "memory")
    shardings = ("none",)
    options = ()
    needs_spark = False

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return 0

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return ()

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        if config.training.workers != 1:
            logger.info("engine local trains in one process; training.workers counts for nothing")
        framework = config.training.framework
        check_installed(framework, EXTRAS[framework])

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        monitor = monitor_for(self.name, run, on_metrics, "127.0.0.1", workers=1)
        task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
        process = subprocess.Popen(
            [sys.executable, "-c", "from pipelines.engines.local import main; main()"],
            stdin=subprocess.PIPE,
        )
        try:
            with monitor:
                assert process.stdin is not None
                # A child that is dead already is noticed by the wait.
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pickle.dump(task, pipe)
                return monitor.wait(lambda: _early_exit(process))
        finally:
            _end(process)


def check_installed(module: str, extra: str) -> None:
    """Refuses an engine whose library is not there.

    Raises:
        EngineUnavailable: With the install command.
    """
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise EngineUnavailable(
            "training.engine",
            f"{module} is not installed",
            f'pip install "sentence-pipelines[{extra}]" on the driver and every executor',
        )


def main() -> None:
    """The child process: reads its task from standard input, which its parent wrote."""
    from pipelines.training.worker import run_worker

    task: WorkerTask = pickle.load(sys.stdin.buffer)
    sys.exit(0 if run_worker(task) else 1)


def _early_exit(process: subprocess.Popen[bytes]) -> EngineError | None:
    """An error if the process ended before it could report one."""
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
