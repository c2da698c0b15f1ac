"""The contract of an engine: its declarations, its checks, and restarts after lost workers.

An engine starts its processes on executors, moves gradients or weights between them, and turns its
failures into :class:`~pipelines.errors.EngineError`. Encoder, loss, order of batches, schedule,
checkpoints and metrics are common to all engines: each process calls
:func:`pipelines.training.loop.run_worker` with the engine's functions. On Spark, an engine derives
from :class:`pipelines.engines.spark_engine.SparkEngine`.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from pipelines.catalog import ENGINES
from pipelines.errors import EngineUnavailable, InputError, WorkerLostError
from pipelines.libraries import check_installed
from pipelines.runs.attempts import begin_attempt
from pipelines.runs.checkpoint import newest_whole_checkpoint, remove_torn_checkpoints
from pipelines.runs.job_records import add_restart
from pipelines.runs.run import Restart, TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import OnMetrics, StepMetrics
from pipelines.settings import Config, TrainingSettings
from pipelines.settings.capabilities import LIMITS, Limit, check_limits
from pipelines.settings.checks import check_divided
from pipelines.spark.java import check_spark
from pipelines.training.control.authenticated_server import Identity
from pipelines.training.control.monitor import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class ConfRule:
    """A required value of the Spark conf.

    Each rule is checked before an engine starts, printed and documented. Other arguments of
    spark-submit follow from the configuration; see :mod:`pipelines.engines.overview`.

    Attributes:
        value: The required value.
        why: The reason, as a predicate whose subject is the engine.
        default: Spark's default.
        most: The largest amount; every smaller whole number is allowed too. None for no amount.
        unless: The key by which the user, with true, switches the rule off.
    """

    key: str
    value: str
    why: str
    default: str = "false"
    most: int | None = None
    unless: str | None = None

    def is_kept(self, conf: Mapping[str, str]) -> bool:
        """Return whether a conf follows the rule."""
        if self.unless is not None and conf.get(self.unless, "false").lower() == "true":
            return True
        if self.most is not None:
            # Compared as text: libraries parse it by `int`, which accepts neither 0.5 nor 1.0.
            return (conf.get(self.key) or "0") in map(str, range(self.most + 1))
        return conf.get(self.key, self.default).strip().lower() == self.value

    @property
    def text(self) -> str:
        """Return the rule as a sentence: the key, its required value, and why."""
        amount = "a whole number, at most " if self.most else ""
        unless = f", or {self.unless} true" if self.unless else ""
        return f"{self.key} must be {amount}{self.value}{unless}: the engine {self.why}."

    @property
    def remedy(self) -> str:
        """Return the fix: the values to set."""
        return f"Set {self.value}" + (f", or {self.unless} true" if self.unless else "")


NO_SPECULATION = ConfRule(key="spark.speculation", value="false", why="cannot run a worker twice")
NO_DYNAMIC_ALLOCATION = ConfRule(
    key="spark.dynamicAllocation.enabled", value="false", why="starts all workers at once"
)
LASTING_WORKERS = (NO_SPECULATION, NO_DYNAMIC_ALLOCATION)
"""For engines with workers that last as long as the run."""
GPU_AMOUNT = "spark.task.resource.gpu.amount"


def check_conf(conf: Mapping[str, str], engine: str, rules: Iterable[ConfRule]) -> None:
    """Refuse a Spark conf that breaks a rule.

    Raises:
        EngineUnavailable: Names the key of the first broken rule.
    """
    for rule in rules:
        if not rule.is_kept(conf):
            raise EngineUnavailable(rule.key, f"engine {engine} {rule.why}", rule.remedy)


logger = logging.getLogger(__name__)

RETURN_SECONDS = 20.0
"""The wait of a restart for all former workers: Spark replaces dead executors."""
# Spark offers the slots of a host that fell silent for `spark.network.timeout`, two minutes.
RECOVERY_SECONDS = 180.0
# Settings under `training` of few engines; the others refuse them.
OPTIONS = ("compression", "model_parallel", "offload", "pipeline_parallel")


@dataclass(frozen=True, kw_only=True)
class Mode:
    """An engine's update rule for users: guarantee, use and needs, in whole sentences.

    `needs` lists the requirements of the cluster, with the keys of the Spark conf.
    """

    guarantee: str
    choose_when: str
    needs: str


class Engine(ABC):
    """One way to train. An engine declares its properties, and implements only the differences.

    Attributes:
        name: Its name in the registry.
        modes: Its update rules, by the values of ``training.mode``.
        best_for: Its best use, in at most 40 characters, for tables.
        frameworks: The frameworks for its gradients.
        feeds: Ways of granules to its workers.
        shardings: Parts of the training state that it can split between the workers.
        options: The supported ones of :data:`OPTIONS`.
        limits: Its limits beyond the table of :mod:`pipelines.settings.capabilities`.
        libraries: Required modules; the extra of the engine's name installs them.
        rules: Required values of the Spark conf, checked in :meth:`check_session`.
        clear_text: Traffic that its library cannot encrypt, even where the cluster encrypts.
        needs_spark: Whether it starts executors.
        spark_majors: The releases of Spark for its libraries; None for any.
    """

    name: ClassVar[str]
    modes: ClassVar[Mapping[str, Mode]]
    best_for: ClassVar[str] = ""
    frameworks: ClassVar[tuple[str, ...]]
    feeds: ClassVar[tuple[str, ...]] = ("lanes", "memory")
    shardings: ClassVar[tuple[str, ...]] = ("none",)
    options: ClassVar[tuple[str, ...]] = ()
    limits: ClassVar[tuple[Limit, ...]] = ()
    libraries: ClassVar[tuple[str, ...]] = ()
    rules: ClassVar[tuple[ConfRule, ...]] = ()
    clear_text: ClassVar[str | None] = None
    needs_spark: ClassVar[bool] = False
    spark_majors: ClassVar[tuple[int, ...] | None] = None

    def workers(self, config: Config) -> int:
        """Return the number of training processes."""
        return config.training.workers

    def executors(self, config: Config) -> int:
        """Return the number of executors for a run, all at once; 0 without Spark."""
        return 0

    def session_conf(self, config: Config, conf: Mapping[str, str]) -> Mapping[str, str]:
        """Return the conf for a run's new session beyond the given one; both by whole keys."""
        return {}

    def extra_submit_conf(self, config: Config) -> Mapping[str, str]:
        """Return arguments of spark-submit besides executors, cores and the rules."""
        return {}

    def preloads(self, config: Config) -> tuple[str, ...]:
        """Return the modules to import before Spark forks the Python workers of a run.

        Their imports must neither compute nor start threads; see :mod:`pipelines.spark.daemon`.
        """
        return ()

    def check_libraries(self, config: Config) -> None:
        """Look for the libraries on the driver; called before Spark starts.

        Raises:
            EngineUnavailable: Names the missing library, or the required Spark.
        """
        if self.spark_majors is not None:
            check_spark(self.name, self.spark_majors)
        for library in self.libraries:
            check_installed("training.engine", library, self.name)

    def check_settings(self, config: Config) -> None:  # noqa: B027 - not all engines refuse some
        """Refuse settings beyond the table's limits; called once, before Spark starts.

        Raises:
            InputError: Names the key, and fitting values.
        """

    def check_session(  # noqa: B027 - not all engines train in a session
        self, session: SparkSession, config: Config
    ) -> None:
        """Refuse an unfit session, before the job prepares anything in it.

        Raises:
            InputError: Names the conflicting key of the conf.
        """

    def check(self, session: SparkSession | None, config: Config) -> None:  # noqa: B027 - as above
        """Refuse a session or a cluster before a start that would fail. Runs on the driver.

        Settings and libraries are checked already. The session is not None if ``needs_spark``.

        Raises:
            InputError: Names the conf key to change.
        """

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """Train, and continue after lost workers, at most ``training.restarts`` times.

        Runs on the driver. There is no second try after a failed first start: that cluster is too
        small. Later starts get several tries, since Spark may still count dead executors. The
        session is not None if ``needs_spark``; `on_metrics` gets each step at once.

        Raises:
            WorkerLostError: No restart is left, or no worker, or the time for a start is over.
            EngineError: The run failed; its processes are gone.
            PipelineError: Another job has taken the run over.
        """
        step_metrics = StepMetrics(run, self.workers(run.config), on_metrics)
        part, left, until = run, run.config.training.restarts, -math.inf
        while part.first_step < part.last_step:
            try:
                return self.attempt(session, part, step_metrics)
            except WorkerLostError as lost:
                if lost.began and left:
                    left, until = left - 1, time.monotonic() + RECOVERY_SECONDS
                elif lost.began or time.monotonic() > until:
                    raise
                # As text: an error in a log would keep alive all that the attempt held.
                logger.warning("%s; the run goes on from its newest checkpoint", str(lost))
                workers = _workers_with_places(self, session, run.config)
                rest = rest_of(run, step_metrics.next_step, workers)
                if rest is None:
                    raise
                part = _restarted(self, rest, step_metrics, lost)
                logger.warning("restarts left: %s (training.restarts)", left)
        return step_metrics.outcome()

    @abstractmethod
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        """Start the workers once, and return when all are done and gone. Runs on the driver.

        The session is not None if ``needs_spark``. After a lost worker, the run is only the rest;
        `step_metrics` cover the whole run.

        Raises:
            WorkerLostError: A worker is lost; the other processes of the run are gone.
            EngineError: The run failed; its processes are gone.
        """

    def room(
        self, session: SparkSession | None, config: Config, wanted: int, seconds: float
    ) -> int:
        """Return the number of workers that can start now.

        It waits up to `seconds` for `wanted` workers.

        The session is not None if ``needs_spark``.
        """
        return wanted

    def with_any_workers(self, config: Config) -> bool:
        """Return whether runs with any number of workers give the same result."""
        return True


def check_fit(engine: Engine, config: Config) -> None:
    """Refuse settings that the engine does not support.

    Raises:
        InputError: Names the key, and the fitting values.
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
                key, f"engine {engine.name} has no `{asked}`", f"Choose one of {', '.join(known)}"
            )
    for name in OPTIONS:
        asked, default = getattr(config.training, name), TrainingSettings.model_fields[name].default
        if asked != default and name not in engine.options:
            raise InputError(
                f"training.{name}",
                f"engine {engine.name} does not know it",
                f"Leave it at {str(default).lower()}",
            )
    check_divided(config.training)
    engine.check_settings(config)
    check_limits(config.asked, (*LIMITS, *engine.limits), engine.name)
    check_limits(config.asked, engine.limits)


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
    """Return the driver's monitor with the deadlines of a run.

    The executors reach the driver by `host`; it listens at `bind`, by default the same. It expects
    `workers`, by default ``training.workers``, and `servers` beside them. The identity encrypts the
    connections; None for plain ones.
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


def _workers_with_places(engine: Engine, session: SparkSession | None, config: Config) -> int:
    """Return the number of workers with a place; wait for the first places, 0 without any."""
    wanted = engine.workers(config)
    fewest = config.training.placement.per_replica
    least = fewest if engine.with_any_workers(config) else wanted
    places = engine.room(session, config, wanted, RETURN_SECONDS)
    if places < least:
        places = engine.room(session, config, least, config.spark.wait_seconds)
    return places if places >= least else 0


def _restarted(
    engine: Engine, rest: TrainingRun, step_metrics: StepMetrics, lost: WorkerLostError
) -> TrainingRun:
    """Begin and record a new attempt at the rest of a run, without its former workers."""
    remove_torn_checkpoints(rest.run_folder)
    # A lost worker may only be cut off from the driver, and still write to the run folder. The new
    # attempt has its own number for that reason.
    attempt = begin_attempt(rest.run_folder, rest.first_step)
    restart = Restart(
        step=rest.first_step,
        workers=engine.workers(rest.config),
        made=step_metrics.next_step,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=lost.engine,
        cause=lost.cause,
        rank=lost.rank,
        host=lost.host,
        lane=lost.lane,
    )
    add_restart(rest.run_folder, restart)
    step_metrics.go_back(restart)
    logger.warning(
        "the run goes on from step %s (%s completed); workers: %s",
        restart.step,
        restart.made,
        restart.workers,
    )
    return replace(rest, attempt=attempt)


def rest_of(run: TrainingRun, made: int, most: int) -> TrainingRun | None:
    """Return the rest of a run after lost workers; the driver has the metrics before step `made`.

    It starts at the newest checkpoint, with the largest number of workers, at most `most` and at
    most the former number, for equal shares of a step. None without such workers or such a
    checkpoint.
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


def engine_of(config: Config) -> Engine:
    """Load the engine of a configuration; see :func:`load_engine`."""
    return load_engine(config.training.engine, config.training.framework)


def load_engine(name: str, framework: str = "") -> Engine:
    """Load the engine of a name; the framework chooses between several implementations.

    Raises:
        InputError: There is no such engine.
        EngineUnavailable: Its library is not installed.
    """
    try:
        engine_class: type[Engine] = ENGINES.load(name, framework)
    except ImportError as error:
        raise EngineUnavailable(
            "training.engine",
            f"engine {name} cannot be loaded ({error})",
            f'Run `pip install "sentence-pipelines[{name}]"` on the driver and every executor',
        ) from error
    return engine_class()
