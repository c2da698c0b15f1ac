"""The smallest engine, as the recipe for a new one has it: this file, and a line of the registry.

One forked process, and numpy for a framework.
"""

from __future__ import annotations

import multiprocessing
from typing import ClassVar

from pipelines.engines.base import NO_SPECULATION, Engine, Mode, monitor_for
from pipelines.runs.run import WorkerTask
from pipelines.training.loop import run_worker

ENTRY = "fork_engine:ForkEngine"
JOIN_SECONDS = 10.0


class ForkEngine(Engine):
    """Trains in one process, and follows a rule of the conf for the sake of the tests."""

    name = "test"
    best_for = "the tests"
    modes: ClassVar = {
        "sync": Mode(guarantee="A curve.", choose_when="Tested.", needs="A test engine.")
    }
    frameworks = ("numpy",)
    rules = (NO_SPECULATION,)

    def check(self, session, config):
        """Nothing can be missing."""

    def attempt(self, session, run, step_metrics):
        monitor = monitor_for(self.name, run, step_metrics, "127.0.0.1")
        task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
        process = multiprocessing.get_context("fork").Process(target=run_worker, args=(task,))
        process.start()
        try:
            with monitor:
                return monitor.wait()
        finally:
            process.join(JOIN_SECONDS)
