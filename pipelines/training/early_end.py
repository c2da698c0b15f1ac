"""The end of a training before its last step, once its evaluations gain no more.

Runs on executors. The driver leaves its request in the run folder, where it is found however a run
goes on; the workers look for it at checkpoints, and agree.
"""

from __future__ import annotations

import numpy as np

from pipelines.runs.best import is_to_end
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives


class EarlyEnd:
    """Whether the workers of a synchronous run end at a checkpoint.

    Args:
        task: Of the worker.
        collectives: Between the workers.
    """

    def __init__(self, task: WorkerTask, collectives: Collectives) -> None:
        self._run = task.run
        self._collectives = collectives

    def is_at(self, step: int) -> bool:
        """Whether no step is made from this one on; all workers ask, after each step."""
        if self._run.config.training.patience is None or not self._run.is_checkpointed(step):
            return False
        # One looks, so that all see the same.
        asked = self._collectives.rank == 0 and is_to_end(self._run.run_folder)
        votes = self._collectives.all_gather(np.array([asked], dtype=np.int64))
        return bool(np.asarray(votes).any())
