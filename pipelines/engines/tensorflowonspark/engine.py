"""The engine: what it offers, what it requires of the cluster, and a run from start to end. Driver.

The cluster is the library's own: its nodes, its queues and its feed. Four things differ. Nodes
register with the token of the run. The driver's monitor replaces the library's waits, which are
long and poll. The function of a node never raises, since the library would then stop the
SparkContext and the driver. And its manager processes, which it leaves behind, end with the run.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.conf import NO_SPECULATION, ConfRule
from pipelines.engines.spark_engine import SparkEngine
from pipelines.engines.tensorflowonspark import NAME
from pipelines.errors import EngineUnavailable, InputError
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.settings import Config
from pipelines.spark.jobs import await_room, dedicated_python_workers, driver_addresses, if_late
from pipelines.spark.session import executor_count, in_one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NODE_EXIT_SECONDS = 20.0
_NEEDS = (
    "An executor per worker with one task at a time (`spark.task.cpus` = `spark.executor.cores`),"
    " `spark.python.worker.reuse` true, `spark.speculation` false."
)
_SERVED = (
    " `training.parameter_servers` executors more, each with four times the size of its share of"
    " the weights, and twice more for each worker, in `spark.executor.memoryOverhead`."
)


class TensorFlowOnSparkEngine(SparkEngine):
    """Trains on one TensorFlow node per executor."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers.",
            choose_when="The result must not depend on the cluster, and executors are alike.",
            needs=_NEEDS,
        ),
        "async": Mode(
            guarantee="The updates of `local`, each from gradients at parameters that may lack "
            "the newest ones; with `training.max_staleness` 0 its loss curve.",
            choose_when="Executors differ in speed, or the slowest must not hold up the others.",
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
            why="finds its nodes again in Python workers that Spark keeps",
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
        _check_executors(session, config, self.executors(config))

    @override
    def train_on(
        self, session: SparkSession, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        # These import the library.
        from pipelines.engines.tensorflowonspark.cluster import (
            GuardedContext,
            start_nodes,
            wait_feeding,
        )
        from pipelines.engines.tensorflowonspark.nodes import NodeArguments
        from pipelines.engines.tensorflowonspark.registration import RegistrationServer

        context = session.sparkContext
        host, bind = driver_addresses(context)
        servers = _parameter_servers(run.config)
        if servers > run.manifest.vocabulary:
            raise InputError(
                "training.parameter_servers",
                f"{servers} servers cannot share {run.manifest.vocabulary} rows",
                f"at most {run.manifest.vocabulary}",
            )
        fed = run.config.training.feed == "spark"
        spares = max(executor_count(session) - self.executors(run.config), 0) if fed else 0
        monitor = monitor_for(self.name, run, on_metrics, host, bind, servers=servers + spares)
        arguments = NodeArguments(
            run=run, monitor=monitor.address, token=monitor.token, servers=servers, spares=spares
        )
        nodes = run.config.training.workers + servers + spares
        group = f"{NAME}-{uuid.uuid4().hex[:8]}"
        guarded = GuardedContext(context, group)
        try:
            with (
                dedicated_python_workers(context, NAME, self.preloads(run.config)),
                RegistrationServer(nodes, host, bind, monitor.token) as registration,
                monitor,
            ):
                cluster = start_nodes(guarded, arguments, registration)
                if fed:
                    return wait_feeding(context, cluster, run, monitor)
                return monitor.wait()
        except BaseException:
            context.cancelJobGroup(group)
            raise
        finally:
            # The nodes have left; their Spark job ends a moment later, before the session may.
            if not guarded.job_ended.wait(NODE_EXIT_SECONDS):
                logger.warning("the Spark job of the nodes has not ended; it is cancelled")
                context.cancelJobGroup(group)


def _parameter_servers(config: Config) -> int:
    return config.training.parameter_servers if config.training.mode == "async" else 0


def _check_executors(session: SparkSession, config: Config, executors: int) -> None:
    """Refuses executors other than the library needs, naming the conf key."""
    context, training = session.sparkContext, config.training
    conf = context.getConf()
    if in_one_process(context.master):
        raise EngineUnavailable(
            "spark.master",
            f"engine {NAME} needs {executors} executors and `{context.master}` has none",
            f"for example local-cluster[{executors},{training.threads},1024]",
        )
    _await_executors(session, config, executors)
    cores = conf.get("spark.executor.cores")
    # Unset, it means all cores of a machine on some clusters, which only the sum then tells.
    per_executor = int(cores) if cores else context.defaultParallelism // executor_count(session)
    if per_executor // int(conf.get("spark.task.cpus", "1") or 1) > 1:
        raise EngineUnavailable(
            "spark.task.cpus",
            f"engine {NAME} needs one task at a time on an executor of {per_executor} cores",
            f"set it to {per_executor}, or spark.executor.cores to 1",
        )


def _await_executors(session: SparkSession, config: Config, wanted: int) -> None:
    """Waits until enough executors are there, since a cluster may still be starting them."""
    training, servers = config.training, _parameter_servers(config)
    there = await_room(session, wanted, lambda: executor_count(session), training.start_seconds)
    if there < wanted:
        nodes = f"{training.workers} workers" + (
            f" and {servers} parameter servers" if servers else ""
        )
        raise EngineUnavailable(
            "training.workers",
            f"{nodes} need {wanted} executors and there are {there}",
            "give the cluster more executors (spark.executor.instances, or the first number "
            f"of local-cluster[...] in spark.master), or ask for fewer; {if_late(training)}",
        )
