"""The contract of an engine.

An engine starts its processes on executors, moves gradients or weights between them, and turns
its own failures into :class:`~pipelines.errors.EngineError`. The encoder, the loss, the order
of the batches, the schedule, checkpoints and metrics are not its business: each process calls
:func:`pipelines.training.worker.run_worker` and passes in the functions that differ.

Most engines derive from :class:`pipelines.engines.spark_engine.SparkJobEngine`, which leaves them
their declarations and the Spark job of their workers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.engines.conf import ConfRule
from pipelines.engines.libraries import check_installed
from pipelines.errors import InputError
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config, TrainingSettings
from pipelines.spark.releases import check_spark
from pipelines.training.control.monitor import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings under `training` that few engines know; the others refuse them.
OPTIONS = ("compression", "elastic")

OnMetrics = Callable[[dict[str, Any]], None]
"""Called on the driver with each metrics line of a run; see ``StepMetrics`` for the lines."""


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


class Engine(ABC):
    """One way to train. An engine declares what it is, and writes only what differs.

    Attributes:
        name: Its name in the registry.
        modes: Its update rules, by the values of ``training.mode``.
        frameworks: Frameworks that can compute its gradients.
        feeds: Ways in which granules can reach its workers.
        shardings: What it can split between the workers instead of having each hold all of it.
        options: Those of :data:`OPTIONS` that it knows.
        libraries: Modules that must be installed; the extra of the engine's name installs them.
        rules: What the Spark conf must not contradict, whatever the configuration.
        needs_spark: Whether it starts executors.
        spark_majors: The releases of Spark that its libraries are compiled for, if not any.
    """

    name: ClassVar[str]
    modes: ClassVar[Mapping[str, Mode]]
    frameworks: ClassVar[tuple[str, ...]]
    feeds: ClassVar[tuple[str, ...]] = ("lanes", "memory")
    shardings: ClassVar[tuple[str, ...]] = ("none",)
    options: ClassVar[tuple[str, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[ConfRule, ...]] = ()
    needs_spark: ClassVar[bool] = False
    spark_majors: ClassVar[tuple[int, ...] | None] = None

    def executors(self, config: Config) -> int:
        """Executors that a run occupies at once; 0 without Spark."""
        return 0

    def conf_rules(self, config: Config) -> Sequence[ConfRule]:
        """What the Spark conf must not contradict; :meth:`check` refuses by the same rules."""
        return self.rules

    def session_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        """What a session that is started for a run needs besides, both by whole keys.

        Args:
            conf: What the session has so far.
        """
        return {}

    def extra_submit_conf(self, config: Config) -> Mapping[str, str]:
        """What spark-submit is to be given besides executors, cores and the rules."""
        return {}

    def preloads(self, config: Config) -> tuple[str, ...]:
        """Modules that Spark's Python workers of a run are forked with.

        Only such as compute nothing and start no threads while they are imported; see
        :mod:`pipelines.spark.daemon`.
        """
        return ()

    def check_libraries(self, config: Config) -> None:
        """Looks for the libraries on the driver; called before Spark starts.

        Raises:
            EngineUnavailable: One is missing, or is for another Spark; with what to install.
        """
        if self.spark_majors is not None:
            check_spark(self.name, self.spark_majors)
        for library in self.libraries:
            check_installed(library, self.name)

    @abstractmethod
    def check(self, session: SparkSession | None, config: Config) -> None:
        """Refuses what can be known not to work before the start. Runs on the driver.

        Raises:
            EngineUnavailable: With the install command or the conf key that makes it run.
        """

    @abstractmethod
    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """Starts the workers and returns when all are done and gone. Runs on the driver.

        Args:
            session: Not None if ``needs_spark``.
            on_metrics: Hears of the steps while the run goes on.

        Raises:
            EngineError: The run failed; no process of it is left.
        """


def check_fit(engine: Engine, config: Config) -> None:
    """Refuses settings that the engine does not know.

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
    step_metrics: StepMetrics | None = None,
) -> Monitor:
    """The driver's monitor with the deadlines of a run.

    Args:
        host: Address by which the executors reach the driver.
        bind: Address to listen at, if that is another one.
        workers: How many to expect; by default ``training.workers``.
        servers: How many further processes to expect.
        step_metrics: Those of a run that other workers began; by default new ones.
    """
    training = run.config.training
    workers = training.workers if workers is None else workers
    return Monitor(
        engine,
        workers,
        step_metrics or StepMetrics(run, workers, on_metrics),
        host=host,
        bind=bind,
        start_seconds=training.start_seconds,
        stall_seconds=training.stall_seconds,
        servers=servers,
    )
