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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.conf import ConfRule
from pipelines.engines.restarts import train_with_restarts
from pipelines.errors import InputError
from pipelines.libraries import check_installed
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import OnMetrics, StepMetrics
from pipelines.settings import Config, TrainingSettings
from pipelines.settings.placement import check_divided
from pipelines.spark.releases import check_spark
from pipelines.training.control.encryption import Identity
from pipelines.training.control.monitor import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings under `training` that few engines know; the others refuse them.
OPTIONS = ("compression", "model_parallel", "offload", "pipeline_parallel")


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

    def workers(self, config: Config) -> int:
        """Processes that train."""
        return config.training.workers

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
            check_installed("training.engine", library, self.name)

    def check_settings(self, config: Config) -> None:  # noqa: B027 - not all engines refuse some
        """Refuses settings that do not fit together on this engine; called before Spark starts.

        Raises:
            InputError: Naming the key, and what would fit.
        """

    def check_session(  # noqa: B027 - not all engines train in a session
        self, session: SparkSession, config: Config
    ) -> None:
        """Refuses a session that the engine cannot train in, before anything is prepared in it.

        Raises:
            InputError: With the key of the conf that stands against it.
        """

    @abstractmethod
    def check(self, session: SparkSession | None, config: Config) -> None:
        """Refuses what can be known not to work before the start. Runs on the driver.

        Raises:
            EngineUnavailable: With the install command or the conf key that makes it run.
        """

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """Trains; after workers are lost, as often as ``training.restarts`` allows.

        Runs on the driver.

        Args:
            session: Not None if ``needs_spark``.
            on_metrics: Hears of the steps while the run goes on.

        Raises:
            EngineError: The run failed; no process of it is left.
        """
        return train_with_restarts(self, session, run, on_metrics)

    @abstractmethod
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        """Starts the workers once, and returns when all are done and gone. Runs on the driver.

        Args:
            session: Not None if ``needs_spark``.
            run: The run, or what is left of it after workers were lost.
            step_metrics: Of the whole run; hears of the steps while they are made.

        Raises:
            WorkerLostError: A worker is gone, and no process of the run is left.
            EngineError: The run failed; no process of it is left.
        """

    def room(
        self, session: SparkSession | None, config: Config, wanted: int, seconds: float
    ) -> int:
        """Workers that can be started now; waits some seconds for those that cannot yet.

        Args:
            session: Not None if ``needs_spark``.
            wanted: No more are waited for.
            seconds: The longest to wait.
        """
        return wanted

    def with_any_workers(self, config: Config) -> bool:
        """Whether the result of a run does not depend on the number of its workers."""
        return True


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
    check_divided(config.training)
    engine.check_settings(config)
    if config.training.offload != "none" and config.training.sharding == "none":
        raise InputError(
            "training.offload",
            "with training.sharding `none` each worker keeps its state in its memory",
            "leave it none, or training.sharding: parameters",
        )


def monitor_for(
    engine: str,
    run: TrainingRun,
    step_metrics: StepMetrics,
    host: str,
    bind: str | None = None,
    *,
    workers: int | None = None,
    servers: int = 0,
    identity: Identity | None = None,
) -> Monitor:
    """The driver's monitor with the deadlines of a run.

    Args:
        host: Address by which the executors reach the driver.
        bind: Address to listen at, if that is another one.
        workers: How many to expect; by default ``training.workers``.
        servers: How many processes to expect beside the workers.
        identity: With which the connections are encrypted, if they are.
    """
    training = run.config.training
    return Monitor(
        engine,
        training.workers if workers is None else workers,
        step_metrics,
        host=host,
        bind=bind,
        start_seconds=training.start_seconds,
        stall_seconds=training.stall_seconds,
        servers=servers,
        saves_when_asked=not run.takes_turns,
        identity=identity,
        placement=training.placement,
    )
