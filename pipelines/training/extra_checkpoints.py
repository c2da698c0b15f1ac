"""Checkpoints beside those of known steps: after some minutes, and when a machine is about to go.

Runs on executors.
"""

from __future__ import annotations

import time

import numpy as np

from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.control.reporter import Reporter


class ExtraCheckpoints:
    """When a worker of a synchronous run has such a checkpoint to write.

    Args:
        task: Of the worker.
        reporter: Hears the driver ask for one.
        together: Between workers that can only write one together, and so agree after each step
            whether there is to be one; None where the first worker writes it alone.
    """

    def __init__(
        self, task: WorkerTask, reporter: Reporter, together: Collectives | None = None
    ) -> None:
        minutes = task.run.config.training.checkpoint_minutes
        self._seconds = None if minutes is None else 60 * minutes
        self._reporter = reporter
        self._together = together
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        """Whether there is to be one after the step that was just made; all workers ask."""
        own = self._reporter.save_asked.is_set() or self._is_late()
        if self._together is None:
            return own
        votes = self._together.all_gather(np.array([own], dtype=np.int64))
        return bool(np.asarray(votes).any())

    def saved(self) -> None:
        """Notes that a checkpoint was written, whatever for."""
        self._saved = time.monotonic()
        self._reporter.save_asked.clear()

    def _is_late(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._saved >= self._seconds
