"""Runs that go on after they have lost workers. Runs on the driver.

All workers are started again, from the newest checkpoint. The steps do not depend on the number
of workers, so nothing is lost but the time since that checkpoint.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipelines.errors import WorkerLostError
from pipelines.runs.attempts import begin_attempt
from pipelines.runs.checkpoint import newest_whole_checkpoint, remove_torn_checkpoints
from pipelines.runs.restarts import add_restart
from pipelines.runs.run import Restart, TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import OnMetrics, StepMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.base import Engine

logger = logging.getLogger(__name__)

RETURN_SECONDS = 20.0
"""How long a restart waits for all workers of before: Spark replaces an executor that has died."""
# Spark offers the slots of a host that fell silent for `spark.network.timeout`, two minutes.
RECOVERY_SECONDS = 180.0


def train_with_restarts(
    engine: Engine, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
) -> TrainingOutcome:
    """Trains, and goes on after workers are lost, at most ``training.restarts`` times.

    Raises:
        EngineError: The run failed; no process of it is left.
    """
    step_metrics = StepMetrics(run, engine.workers(run.config), on_metrics)
    recovery = Recovery(engine, session, run, step_metrics)
    part = run
    while part.first_step < part.last_step:
        try:
            return engine.attempt(session, part, step_metrics)
        except WorkerLostError as lost:
            part = recovery.rest(lost)
    return step_metrics.outcome()


class Recovery:
    """Decides what follows when workers are lost.

    Args:
        engine: Which trains.
        session: Where it trains.
        run: The whole run.
        step_metrics: Of the whole run.
    """

    def __init__(
        self,
        engine: Engine,
        session: SparkSession | None,
        run: TrainingRun,
        step_metrics: StepMetrics,
    ) -> None:
        self._engine = engine
        self._session = session
        self._run = run
        self._step_metrics = step_metrics
        self._left = run.config.training.restarts
        self._until = -math.inf

    def rest(self, lost: WorkerLostError) -> TrainingRun:
        """What is left of a run, for workers that the cluster has room for.

        The first start is not tried again: a cluster that never had all workers ready is too
        small. Later ones are, for a time: Spark may not know yet which executors are gone.

        Args:
            lost: How the part before ended; no worker of it is left.

        Raises:
            WorkerLostError: No restart is left, or no worker, or the time for a start is over.
            PipelineError: Another job has taken the run over.
        """
        if lost.began:
            if self._left == 0:
                raise lost
            self._left -= 1
            self._until = time.monotonic() + RECOVERY_SECONDS
        elif time.monotonic() > self._until:
            raise lost
        # As text: with the error, whoever keeps the log would keep all that the attempt held.
        logger.warning("%s; the run goes on from its newest checkpoint", str(lost))
        made = self._step_metrics.next_step
        rest = rest_of(self._run, made, self._workers_there())
        if rest is None:
            raise lost
        remove_torn_checkpoints(self._run.run_folder)
        # Workers that were given up may be cut off from the driver alone, and go on for a while.
        attempt = begin_attempt(self._run.run_folder, rest.first_step)
        self._note(rest, made, lost)
        return replace(rest, attempt=attempt)

    def _workers_there(self) -> int:
        """Workers that there is room for now; waits where there is none for any."""
        config = self._run.config
        wanted = self._engine.workers(config)
        fewest = config.training.placement.per_replica
        least = fewest if self._engine.with_any_workers(config) else wanted
        there = self._engine.room(self._session, config, wanted, RETURN_SECONDS)
        if there < least:
            seconds = config.spark.wait_seconds
            there = self._engine.room(self._session, config, least, seconds)
        return there if there >= least else 0

    def _note(self, rest: TrainingRun, made: int, lost: WorkerLostError) -> None:
        workers = self._engine.workers(rest.config)
        restart = Restart(
            step=rest.first_step,
            workers=workers,
            made=made,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            engine=lost.engine,
            cause=lost.cause,
            rank=lost.rank,
            host=lost.host,
            lane=lost.lane,
        )
        add_restart(self._run.run_folder, restart)
        self._step_metrics.go_back(restart)
        logger.warning(
            "the run goes on from step %s of %s that were made; workers: %s, restarts left: %s "
            "(training.restarts)",
            rest.first_step,
            made,
            workers,
            self._left,
        )


def rest_of(run: TrainingRun, made: int, most: int) -> TrainingRun | None:
    """What is left of a run that has lost workers.

    Args:
        run: The whole run.
        made: The driver has the metrics of all steps before this one.
        most: The largest number of workers that there is room for.

    Returns:
        It goes on from the newest checkpoint with as many workers as it had, or with the most
        that share a step evenly; None if there are none, or there is no such checkpoint.
    """
    training = run.config.training
    of_replica = training.placement.per_replica
    workers = range(of_replica, min(most, training.processes) + 1, of_replica)
    even = [
        count
        for count in workers
        if run.takes_turns or training.granules_per_step % (count // of_replica) == 0
    ]
    if not even:
        return None
    first_step = newest_whole_checkpoint(run.run_folder, latest=made)
    if first_step is None:
        return None
    if even[-1] == training.processes:
        return replace(run, first_step=first_step)
    # Each of fewer workers takes longer for its part of a step.
    stall_seconds = math.ceil(training.stall_seconds * training.processes / even[-1])
    training = training.model_copy(update={"workers": even[-1], "stall_seconds": stall_seconds})
    config = run.config.model_copy(update={"training": training})
    return replace(run, config=config, first_step=first_step)
