"""The contract of an engine.

An engine starts its processes on executors, moves gradients or weights between them, and turns
its own failures into :class:`~pipelines.errors.EngineError`. The encoder, the loss, the order
of the batches, the schedule, checkpoints and metrics are not its business: each process calls
:func:`pipelines.training.worker.run_worker` and passes in the functions that differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.training.monitor import Monitor
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnMetrics = Callable[[dict[str, Any]], None]


class Engine(Protocol):
    """One way to train on a cluster.

    Attributes:
        name: Its name in the registry.
        modes: Update rules that it knows.
        frameworks: Frameworks that can compute its gradients.
        feeds: Ways that granules can reach its workers.
        needs_spark: Whether it starts executors.
    """

    name: str
    modes: tuple[str, ...]
    frameworks: tuple[str, ...]
    feeds: tuple[str, ...]
    needs_spark: bool

    def check(self, session: SparkSession | None, config: Config) -> None:
        """Looks at what can be known before the start. Runs on the driver.

        Raises:
            EngineUnavailable: With the install command or the conf key that makes it run.
        """
        ...

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """Starts the workers and returns when all are done and gone. Runs on the driver.

        Args:
            session: The Spark session, if ``needs_spark``.
            run: What to train.
            on_metrics: Called with each metrics line while the run goes on.

        Raises:
            EngineError: The run failed; no process of it is left.
        """
        ...


def check_fit(engine: Engine, config: Config) -> None:
    """Refuses settings that the engine does not know, or that contradict each other.

    Raises:
        InputError: Naming the key, and the values that fit.
    """
    for key, asked, known in (
        ("training.mode", config.training.mode, engine.modes),
        ("training.framework", config.training.framework, engine.frameworks),
        ("training.feed", config.training.feed, engine.feeds),
    ):
        if asked not in known:
            raise InputError(
                key, f"engine {engine.name} has no `{asked}`", f"one of {', '.join(known)}"
            )


def monitor_for(
    engine: str, run: TrainingRun, on_metrics: OnMetrics, host: str, bind: str | None = None
) -> Monitor:
    """The driver's monitor with the deadlines of a run."""
    training = run.config.training
    return Monitor(
        engine,
        training.workers,
        host=host,
        bind=bind,
        start_seconds=training.start_seconds,
        stall_seconds=training.stall_seconds,
        on_metrics=on_metrics,
    )
