"""The engine: its modes, its requirements of the cluster, and a run. Runs on the driver.

Nodes, queues and feed are the library's, with four differences. Nodes register with the token of
the run. The driver's monitor replaces the library's long waits. A node's function never raises,
since the library would then stop the SparkContext and the driver. The library leaves its manager
processes behind; here they end with the run.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import NO_SPECULATION, ConfRule, Mode, monitor_for
from pipelines.engines.spark_engine import SparkEngine, driver_identity, if_late
from pipelines.engines.tensorflowonspark import NAME
from pipelines.errors import EngineUnavailable, InputError
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.runs.step_metrics import StepMetrics
from pipelines.settings import Config
from pipelines.spark.errors import LeavingExecutors, reasons_of_losses
from pipelines.spark.jobs import (
    await_room,
    await_slots,
    dedicated_python_workers,
    driver_addresses,
    task_slots,
)
from pipelines.spark.session import executor_count, in_one_process
from pipelines.spark.stage_resources import resource_profile, resources_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NODE_EXIT_SECONDS = 20.0
_NEEDS = (
    "One executor per worker, each with one task at a time (`spark.task.cpus` ="
    " `spark.executor.cores`)."
)
_SERVED = (
    " One more executor for each of `training.parameter_servers`. Its"
    " `spark.executor.memoryOverhead` holds 4 times its share of the weights, and 2 times more"
    " for each worker."
)


class TensorFlowOnSparkEngine(SparkEngine):
    """Trains on one TensorFlow node per executor."""

    name = NAME
    best_for = "TensorFlow; clusters that encrypt"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers.",
            choose_when="You train with TensorFlow, and executors are equally fast.",
            needs=_NEEDS,
        ),
        "async": Mode(
            guarantee="The updates of `local`, from gradients that may be a few updates old. With "
            "`training.max_staleness: 0` the loss curve of `local`.",
            choose_when="Executors differ in speed, so that the slowest would hold up the others.",
            needs=_NEEDS + _SERVED,
        ),
    }
    frameworks = ("tensorflow",)
    feeds = ("lanes", "spark", "memory")
    libraries = ("tensorflow", "tensorflowonspark")
    rules = (
        NO_SPECULATION,
        ConfRule(
            key="spark.python.worker.reuse",
            value="true",
            default="true",
            why="finds its nodes again in reused Python workers",
        ),
    )

    @override
    def executors(self, config: Config) -> int:
        return config.training.workers + _parameter_servers(config)

    @override
    def preloads(self, config: Config) -> tuple[str, ...]:
        return (*super().preloads(config), "pipelines.engines.tensorflowonspark.nodes")

    @override
    def check_cluster(self, session: SparkSession, config: Config) -> None:
        _check_master(session, config, self.executors(config))
        wanted, seconds = config.training.workers, config.spark.wait_seconds
        places = self.room(session, config, wanted, seconds)
        if places < wanted:
            servers = _parameter_servers(config)
            nodes = f"{wanted} workers" + (f" and {servers} parameter servers" if servers else "")
            raise EngineUnavailable(
                "training.workers",
                f"{nodes} need {wanted + servers} executors, and there are {places + servers}",
                "Give the cluster more executors (spark.executor.instances, or the first number "
                f"of local-cluster[...] in spark.master), or ask for fewer; {if_late(config)}",
            )
        _check_one_task(session, config)

    @override
    def room(
        self, session: SparkSession | None, config: Config, wanted: int, seconds: float
    ) -> int:
        session = self._required(session)
        servers, stage = _parameter_servers(config), resources_in(session, config, "train")
        if stage.dynamic:
            places = await_slots(session, wanted + servers, seconds, stage)
        else:
            places = await_room(session, wanted + servers, lambda: executor_count(session), seconds)
        return max(places - servers, 0)

    @override
    def attempt(
        self, session: SparkSession | None, run: TrainingRun, step_metrics: StepMetrics
    ) -> TrainingOutcome:
        session = self._required(session)
        # These import the library.
        from pipelines.engines.tensorflowonspark.cluster import (
            GuardedContext,
            start_nodes,
            wait_feeding,
        )
        from pipelines.engines.tensorflowonspark.nodes import NodeArguments, RegistrationServer

        context = session.sparkContext
        host, bind = driver_addresses(context)
        servers = _parameter_servers(run.config)
        if servers > run.manifest.vocabulary:
            raise InputError(
                "training.parameter_servers",
                f"{servers} servers cannot share {run.manifest.vocabulary} rows of the vocabulary",
                f"Use at most {run.manifest.vocabulary}",
            )
        fed = run.config.training.feed == "spark"
        stage = resources_in(session, run.config, "train")
        profile = resource_profile(stage)
        spares = max(task_slots(context, profile) - self.executors(run.config), 0) if fed else 0
        identity = driver_identity(context)
        monitor = monitor_for(
            self.name, run, step_metrics, host, bind, servers=servers + spares, identity=identity
        )
        arguments = NodeArguments(
            run=run,
            monitor=monitor.address,
            token=monitor.token,
            fingerprint=monitor.fingerprint,
            servers=servers,
            spares=spares,
        )
        nodes = run.config.training.workers + servers + spares
        group = f"{NAME}-{uuid.uuid4().hex[:8]}"
        guarded = GuardedContext(context, group, profile)
        leaving = LeavingExecutors(context, monitor.ask_for_checkpoint)
        try:
            with (
                reasons_of_losses(context, monitor.address_of),
                dedicated_python_workers(context, NAME, self.preloads(run.config)),
                RegistrationServer(nodes, host, bind, monitor.token, identity) as registration,
                monitor,
            ):
                cluster = start_nodes(guarded, arguments, registration)
                if fed:
                    return wait_feeding(context, cluster, run, monitor, leaving.look, profile)
                return monitor.wait(leaving.look)
        except BaseException:
            guarded.cancel()
            raise
        finally:
            # Their Spark job ends a moment after the nodes, and must not outlast the session.
            if not guarded.job_ended.wait(NODE_EXIT_SECONDS):
                logger.warning("the Spark job of the nodes has not ended and is cancelled")
                guarded.cancel()


def _parameter_servers(config: Config) -> int:
    return config.training.parameter_servers if config.training.mode == "async" else 0


def _check_master(session: SparkSession, config: Config, executors: int) -> None:
    """Refuse a master without executors."""
    master, threads = session.sparkContext.master, config.training.threads
    if in_one_process(master):
        raise EngineUnavailable(
            "spark.master",
            f"engine {NAME} needs {executors} executors and `{master}` has none",
            f"Use a cluster, for example local-cluster[{executors},{threads},1024]",
        )


def _check_one_task(session: SparkSession, config: Config) -> None:
    """Refuse executors with several tasks at once: the library supports one."""
    conf = resources_in(session, config, "train").conf
    cores = conf.get("spark.executor.cores")
    # Unset means all cores of a machine on some clusters; only the total shows their number.
    total = session.sparkContext.defaultParallelism
    per_executor = int(cores) if cores else total // executor_count(session)
    if per_executor // int(conf.get("spark.task.cpus", "1") or 1) > 1:
        raise EngineUnavailable(
            "spark.task.cpus",
            f"engine {NAME} needs one task at a time on an executor of {per_executor} cores",
            f"Set it to {per_executor}, or spark.executor.cores to 1",
        )
