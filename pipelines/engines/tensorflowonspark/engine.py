"""The engine: what it offers, what it asks of the cluster, and a run from first to last. Driver.

The cluster is the library's own: its nodes, its queues and its feed. What it leaves open is closed
here. Nodes register with the token of the run. The driver's monitor replaces the library's waits,
which are long and poll; a node function that never raises keeps it from stopping the SparkContext
and the driver; and its manager processes, which it leaves behind, are ended with the run.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, ClassVar

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.conf import NO_SPECULATION, ConfRule, refuse_unfit
from pipelines.engines.jobs import driver_addresses, workers_of_their_own
from pipelines.engines.local import check_installed
from pipelines.engines.tensorflowonspark.cluster import (
    NAME,
    SparedContext,
    start_nodes,
    wait_feeding,
)
from pipelines.engines.tensorflowonspark.nodes import NodeArguments
from pipelines.engines.tensorflowonspark.registration import RegistrationServer
from pipelines.errors import EngineUnavailable, InputError
from pipelines.session import executor_count, in_one_process
from pipelines.settings import Config
from pipelines.training.run import TrainingOutcome, TrainingRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

NODE_EXIT_SECONDS = 20.0
_NEEDS = (
    "An executor per worker with one task at a time (`spark.task.cpus` = `spark.executor.cores`),"
    " `spark.python.worker.reuse` true, `spark.speculation` false."
)
_OPEN = (
    " A network that only the cluster can reach: the servers with which TensorFlow's workers"
    " exchange gradients ask nobody who they are."
)
_SERVED = (
    " `training.parameter_servers` executors more, each with four times the size of its share of"
    " the weights, and twice more for each worker, in `spark.executor.memoryOverhead`."
)

_RULES = (
    NO_SPECULATION,
    ConfRule(
        key="spark.python.worker.reuse",
        value="true",
        default="true",
        why="finds its nodes again in Python workers that Spark keeps",
    ),
)


class TensorFlowOnSparkEngine:
    """Trains on one TensorFlow node per executor."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers.",
            choose_when="The result must not depend on the cluster, and executors are alike.",
            needs=_NEEDS + _OPEN,
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
    shardings = ("none",)
    options = ()
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers + _parameter_servers(config)

    def conf_rules(self, config: Config) -> tuple[ConfRule, ...]:
        """See :class:`pipelines.engines.base.Engine`."""
        return _RULES

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_installed("tensorflow", NAME)
        _check_cluster(session, config, self.executors(config))

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
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
        spared = SparedContext(context, group)
        try:
            with (
                workers_of_their_own(context, NAME),
                RegistrationServer(nodes, host, bind, monitor.token) as registration,
                monitor,
            ):
                cluster = start_nodes(spared, arguments, registration)
                if fed:
                    return wait_feeding(context, cluster, run, monitor)
                return monitor.wait()
        except BaseException:
            context.cancelJobGroup(group)
            raise
        finally:
            # The nodes have left; their Spark job ends a moment later, before the session may.
            if not spared.job_ended.wait(NODE_EXIT_SECONDS):
                logger.warning("the Spark job of the nodes goes on; it is called off")
                context.cancelJobGroup(group)


def _parameter_servers(config: Config) -> int:
    return config.training.parameter_servers if config.training.mode == "async" else 0


def _check_cluster(session: SparkSession, config: Config, executors: int) -> None:
    """What the library needs of the cluster, said with the conf key."""
    context, training = session.sparkContext, config.training
    conf = context.getConf()
    if in_one_process(context.master):
        raise EngineUnavailable(
            "spark.master",
            f"engine {NAME} needs {executors} executors and `{context.master}` has none",
            f"for example local-cluster[{executors},{training.threads},1024]",
        )
    refuse_unfit(dict(conf.getAll()), NAME, _RULES)
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
    deadline = time.monotonic() + training.start_seconds
    while (there := executor_count(session)) < wanted:
        if time.monotonic() > deadline:
            nodes = f"{training.workers} workers" + (
                f" and {servers} parameter servers" if servers else ""
            )
            raise EngineUnavailable(
                "training.workers",
                f"{nodes} need {wanted} executors and there are {there}",
                "give the cluster more executors (spark.executor.instances, or the first number "
                "of local-cluster[...] in spark.master), or ask for fewer",
            )
        time.sleep(0.2)
