"""The contract of an engine.

An engine starts its processes on executors, moves gradients or weights between them, and turns
its own failures into :class:`~pipelines.errors.EngineError`. The encoder, the loss, the order
of the batches, the schedule, checkpoints and metrics are not its business: each process calls
:func:`pipelines.training.worker.run_worker` and passes in the functions that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pipelines.errors import InputError
from pipelines.settings import Config, TrainingSettings
from pipelines.training.ledger import Ledger
from pipelines.training.monitor import Monitor
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.engines.conf import ConfRule

# Settings under `training` that an engine must say that it knows.
OPTIONS = ("compression", "elastic")

OnMetrics = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """What a user should know of an update rule of an engine, in whole sentences.

    Attributes:
        guarantee: What it promises about the result.
        choose_when: When it is the one to take.
        needs: What it needs of the cluster, with the keys of the Spark conf.
    """

    guarantee: str
    choose_when: str
    needs: str


class Engine(Protocol):
    """One way to train on a cluster.

    Attributes:
        name: Its name in the registry.
        modes: Update rules that it knows, by the name that ``training.mode`` gives them.
        frameworks: Frameworks that can compute its gradients.
        feeds: Ways that granules can reach its workers.
        shardings: What it can split between the workers instead of having each hold it.
        options: Settings under ``training`` that few engines know, and this one does.
        needs_spark: Whether it starts executors.
    """

    name: str
    modes: Mapping[str, Mode]
    frameworks: tuple[str, ...]
    feeds: tuple[str, ...]
    shardings: tuple[str, ...]
    options: tuple[str, ...]
    needs_spark: bool

    def executors(self, config: Config) -> int:
        """Executors that a run occupies at once; 0 if it needs no Spark."""
        ...

    def conf_rules(self, config: Config) -> Sequence[ConfRule]:
        """What the Spark conf must not contradict; :meth:`check` refuses by the same rules."""
        ...

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


@runtime_checkable
class NeedsConf(Protocol):
    """An engine whose executors must be started in a certain way."""

    def spark_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        """What a new session needs in its conf, by what it has; both by whole keys."""
        ...


def check_fit(engine: Engine, config: Config) -> None:
    """Refuses settings that the engine does not know, or that contradict each other.

    Raises:
        InputError: Naming the key, and the values that fit.
    """
    choices: tuple[tuple[str, str, Iterable[str]], ...] = (
        ("training.mode", config.training.mode, engine.modes),
        ("training.framework", config.training.framework, engine.frameworks),
        ("training.feed", config.training.feed, engine.feeds),
        ("training.sharding", config.training.sharding, engine.shardings),
    )
    for key, asked, known in choices:
        if asked not in known:
            raise InputError(
                key, f"engine {engine.name} has no `{asked}`", f"one of {', '.join(known)}"
            )
    for name in OPTIONS:
        asked, default = getattr(config.training, name), TrainingSettings.model_fields[name].default
        if asked != default and name not in engine.options:
            raise InputError(
                f"training.{name}",
                f"engine {engine.name} does not know it",
                f"leave it {str(default).lower()}",
            )


def monitor_for(
    engine: str,
    run: TrainingRun,
    on_metrics: OnMetrics,
    host: str,
    bind: str | None = None,
    *,
    workers: int | None = None,
    servers: int = 0,
    ledger: Ledger | None = None,
) -> Monitor:
    """The driver's monitor with the deadlines of a run.

    Args:
        engine: Name of the engine.
        run: The run.
        on_metrics: Called with each metrics line.
        host: Address by which the executors reach the driver.
        bind: Address to listen at, if that is another one.
        workers: How many to expect; ``training.workers`` unless told.
        servers: How many further processes to expect.
        ledger: Of a run that other workers began; unless given, a new one.
    """
    training = run.config.training
    workers = training.workers if workers is None else workers
    return Monitor(
        engine,
        workers,
        ledger or Ledger(run, workers, on_metrics),
        host=host,
        bind=bind,
        start_seconds=training.start_seconds,
        stall_seconds=training.stall_seconds,
        servers=servers,
    )
