"""Elastic runs, which go on with fewer workers after some are lost. Runs on the driver.

All ranks are started again, from the newest checkpoint, as often as workers are lost. The steps do
not depend on the number of workers, so nothing is lost but the steps since that checkpoint.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

from pipelines.errors import EngineUnavailable, WorkerLostError
from pipelines.runs.checkpoint import newest_whole_checkpoint, remove_torn_checkpoints
from pipelines.runs.run import TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import TrainingSettings

logger = logging.getLogger(__name__)

# Spark offers the slots of a host that fell silent for `spark.network.timeout`, two minutes.
RECOVERY_SECONDS = 180.0


def check_elastic(training: TrainingSettings) -> None:
    """Refuses settings with which a run could not go on.

    Raises:
        EngineUnavailable: They do not fit an elastic run.
    """
    if training.elastic and training.workers == 1:
        raise EngineUnavailable("training.elastic", "one worker leaves none to go on", "set false")
    if training.elastic and training.keep_checkpoints == 1:
        raise EngineUnavailable(
            "training.keep_checkpoints",
            "the driver may not have heard yet of the steps before the newest one",
            "2 or more with training.elastic",
        )


class Recovery:
    """Decides what follows when workers are lost.

    Args:
        run: The whole run.
        step_metrics: Of the whole run.
        slots: How many workers the cluster has room for now.
    """

    def __init__(
        self, run: TrainingRun, step_metrics: StepMetrics, slots: Callable[[], int]
    ) -> None:
        self._run = run
        self._step_metrics = step_metrics
        self._slots = slots
        self._until = -math.inf

    def rest(self, part: TrainingRun, lost: WorkerLostError) -> TrainingRun:
        """What is left of a run, for workers that the cluster has room for.

        The first start is not tried again: a cluster that never had all workers ready is too
        small. Later ones are, for a time: Spark may not know yet which executors are gone.

        Args:
            part: What was being trained; no worker of it is left.
            lost: How it ended.

        Raises:
            WorkerLostError: The run is not elastic, no worker is left, or its time is over.
        """
        if lost.began:
            self._until = time.monotonic() + RECOVERY_SECONDS
        elif time.monotonic() > self._until:
            raise lost
        left = part.config.training.workers - lost.began
        rest = rest_of(part, self._step_metrics.next_step, min(left, max(self._slots(), 1)))
        if rest is None:
            raise lost
        workers = rest.config.training.workers
        logger.warning("%s; %s workers go on from step %s", lost, workers, rest.first_step)
        remove_torn_checkpoints(self._run.run_folder)
        self._step_metrics.go_back(rest.first_step, workers)
        return rest


def rest_of(run: TrainingRun, made: int, most: int) -> TrainingRun | None:
    """What is left of a run that has lost workers.

    Args:
        run: The run, or what was left of it before.
        made: The driver has the metrics of all steps before this one.
        most: The largest number of workers that there is room for.

    Returns:
        It goes on from the newest checkpoint with the most workers that share a step evenly;
        None if there are none, there is no such checkpoint, or the run is not elastic.
    """
    training = run.config.training
    even = [n for n in range(1, most + 1) if training.granules_per_step % n == 0]
    if not (training.elastic and even):
        return None
    first_step = newest_whole_checkpoint(run.run_folder, latest=made)
    if first_step is None:
        return None
    # Each of fewer workers takes longer for its part of a step.
    stall_seconds = math.ceil(training.stall_seconds * training.workers / even[-1])
    training = training.model_copy(update={"workers": even[-1], "stall_seconds": stall_seconds})
    config = run.config.model_copy(update={"training": training})
    return replace(run, config=config, first_step=first_step)
