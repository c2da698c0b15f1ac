"""A worker process from its first to its last moment. Runs on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from pipelines.quiet import quiet_import
from pipelines.training.exchange import Alone
from pipelines.training.feed import FILE_FEEDS, StepWork
from pipelines.training.loop import StepperFactory, train_worker
from pipelines.training.reporter import Reporter
from pipelines.training.run import WorkerTask

# Where each framework's stepper is, and those of engines that split the state between the
# workers; imported only in a worker.
STEPPERS = {
    "tensorflow": ("pipelines.training.tensorflow", "TensorFlowStepper"),
    "torch": ("pipelines.training.torch", "TorchStepper"),
    "torch-fsdp": ("pipelines.training.fsdp", "FsdpStepper"),
    "deepspeed": ("pipelines.training.deepspeed", "DeepSpeedStepper"),
}

Loop = Callable[[WorkerTask, StepperFactory, Any, Iterator[StepWork], Reporter], None]


def stepper_factory(name: str) -> StepperFactory:
    """The stepper of a name, which is a framework's or an engine's; imports its library."""
    module, name = STEPPERS[name]
    factory: StepperFactory = getattr(import_module(module), name)
    return factory


def run_worker(
    task: WorkerTask,
    make_exchange: Callable[[], Any] = Alone,
    feed: Callable[[], Iterator[StepWork]] | None = None,
    loop: Loop = train_worker,
    stepper: str | None = None,
    means_peer_lost: Callable[[Exception], bool] = lambda error: False,
) -> bool:
    """Trains one worker's share, under the eyes of the driver. Runs on an executor.

    Errors are reported to the driver, which decides about the run; the reporter ends this
    process when the driver calls the run off.

    Args:
        task: The worker's task.
        make_exchange: Makes what the loop moves numbers with. Called once the line to the
            driver stands, since starting a cluster may fail or wait.
        feed: The worker's steps; by default from the lane files.
        loop: The rule by which the workers' steps become one run.
        stepper: Who computes, of ``STEPPERS``; by default the framework's.
        means_peer_lost: Whether an error says that another worker is gone.

    Returns:
        Whether the share was finished; if not, the driver knows why.

    Raises:
        OSError: The driver cannot be reached.
    """
    training = task.run.config.training
    with Reporter(task) as reporter:
        try:
            with quiet_import():
                factory = stepper_factory(stepper or training.framework)
            factory.prepare_process(training)
            exchange = make_exchange()
            steps = feed() if feed is not None else FILE_FEEDS[training.feed](task)
            loop(task, factory, exchange, steps, reporter)
            reporter.done()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver raises it
            reporter.failed(error, peer_lost=means_peer_lost(error))
            return False
    return True
