"""A worker process from its start to its end. Runs on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pipelines.catalog import STEPPERS
from pipelines.quiet import quiet_import
from pipelines.runs.attempts import fenced
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.control.reporter import Reporter
from pipelines.training.feed import FILE_FEEDS, StepWork
from pipelines.training.loop import train_worker
from pipelines.training.steppers.base import StepperFactory

# Each loop has its own kind of stepper, and its own way to move numbers between workers.
Loop = Callable[[WorkerTask, StepperFactory[Any], Any, Iterator[StepWork], Reporter], None]


def run_worker(
    task: WorkerTask,
    make_collectives: Callable[[], Any] = SingleProcess,
    feed: Callable[[], Iterator[StepWork]] | None = None,
    loop: Loop = train_worker,
    stepper: str | None = None,
    means_peer_lost: Callable[[Exception], bool] = lambda error: False,
) -> bool:
    """Trains one worker's share, connected to the driver's monitor. Runs on an executor.

    Errors are reported to the driver, which decides about the run; the reporter ends this
    process when the driver cancels the run.

    Args:
        make_collectives: Makes what the loop moves numbers with. Called once the driver is
            connected, since starting a cluster may fail or wait.
        feed: The worker's steps; by default from the lane files.
        loop: The rule by which the workers' steps become one run.
        stepper: A name of ``STEPPERS``; by default the framework's.
        means_peer_lost: Whether an error says that another worker is gone.

    Returns:
        Whether the share was finished; if not, the driver knows why.

    Raises:
        OSError: The driver cannot be reached.
    """
    training = task.run.config.training
    with fenced(task.run.run_folder, task.run.attempt), Reporter(task) as reporter:
        try:
            with quiet_import():
                factory: StepperFactory[Any] = STEPPERS.load(stepper or training.framework)
            factory.prepare_process(training)
            collectives = make_collectives()
            steps = feed() if feed is not None else FILE_FEEDS[training.feed](task)
            loop(task, factory, collectives, steps, reporter)
            reporter.done()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver raises it
            reporter.failed(error, peer_lost=means_peer_lost(error))
            return False
    return True
