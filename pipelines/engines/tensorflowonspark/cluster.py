"""The library's cluster, limited to one run and kept from the user's session. On the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipelines.engines.tensorflowonspark import NAME
from pipelines.engines.tensorflowonspark.nodes import (
    QUEUE_BOUND,
    NodeArguments,
    RegistrationServer,
    feed_partition,
    registering_at,
    run_node,
)
from pipelines.errors import EngineError, PipelineError
from pipelines.quiet import quiet_import
from pipelines.runs.run import TrainingOutcome, TrainingRun
from pipelines.spark.errors import TaskPlace, name_of, spark_cause, task_places
from pipelines.spark.jobs import SparkJob, ranks_of, with_profile
from pipelines.training.control.monitor import Monitor

# The library imports TensorFlow, which greets on standard error, and pkg_resources, which warns.
with quiet_import():
    from tensorflowonspark import TFCluster

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.resource import ResourceProfile


class GuardedContext:
    """The SparkContext without the library's calls that end the user's session.

    The library starts the nodes' job on a separate thread. It runs in a job group, so a
    cancellation ends no other job. `job_ended` is set unless the job runs, and `cancelled` from its
    cancellation on.
    """

    def __init__(self, context: SparkContext, group: str, profile: ResourceProfile | None) -> None:
        self._context = context
        self._profile = profile
        self._group = group
        self.job_ended = threading.Event()
        self.job_ended.set()
        self.cancelled = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def parallelize(self, values: Sequence[int], partitions: int) -> _GroupedNodes:
        """Return the nodes; the library calls it once, to start them."""
        nodes = with_profile(self._context.parallelize(values, partitions), self._profile)
        return _GroupedNodes(self, nodes, self._group)

    def cancel(self) -> None:
        """Cancel the nodes' job."""
        self.cancelled.set()
        self._context.cancelJobGroup(self._group)

    def places(self) -> list[TaskPlace]:
        """Return the places of the started nodes."""
        return task_places(self._context, self._group)

    def stop(self) -> None:
        """Do nothing: the session is the user's."""

    def cancelAllJobs(self) -> None:  # noqa: N802 - the name that the library calls
        """Do nothing: other jobs are the user's."""


class _GroupedNodes:
    """The nodes as an RDD, with the only call that the library uses."""

    def __init__(self, context: GuardedContext, nodes: RDD[int], group: str) -> None:
        self._context = context
        self._nodes = nodes
        self._group = group

    def foreachPartition(self, function: Callable[[Iterable[int]], None]) -> None:  # noqa: N802
        """Start the nodes, in the job group of the run; the library prints errors."""
        self._context.setJobGroup(self._group, "TensorFlow nodes", interruptOnCancel=True)
        self._context.job_ended.clear()
        try:
            self._nodes.foreachPartition(function)
        except Exception as error:  # noqa: BLE001 - Spark's, as one line; a cancelled job has none
            if not self._context.cancelled.is_set():
                raise PipelineError(spark_cause(error)) from None
        finally:
            self._context.job_ended.set()


def start_nodes(
    context: GuardedContext, arguments: NodeArguments, server: RegistrationServer
) -> TFCluster.TFCluster:
    """Start the cluster; return after the registration of all nodes at the server.

    Raises:
        EngineError: The deadline is over, or the start of a node failed.
    """
    training = arguments.run.config.training
    # Module state of the library: the error of an earlier run must not end this one.
    TFCluster.tf_status = {}
    # The library's parameter servers block their executors for other tasks. Spare nodes must do the
    # same, so they are parameter servers to the library.
    further = arguments.servers + arguments.spares
    modes = TFCluster.InputMode
    try:
        with registering_at(server, training.start_seconds):
            return TFCluster.run(
                context,
                run_node,
                arguments,
                num_executors=training.workers + further,
                num_ps=further,
                input_mode=modes.SPARK if training.feed == "spark" else modes.TENSORFLOW,
                master_node="chief",
                reservation_timeout=training.start_seconds,
                release_port=False,
            )
    except SystemExit:
        cause = spark_cause(TFCluster.tf_status.get("error", "no error was given"))
        raise EngineError(NAME, f"the nodes' Spark job failed ({cause})") from None
    except Exception as error:
        # The library raises a plain Exception.
        cause = (
            f"the nodes did not start within training.start_seconds ({training.start_seconds} s)"
        )
        registered = {node["executor_id"] for node in server.reservations.get()}
        silent = silent_node(context.places(), registered)
        if silent is None:
            raise EngineError(NAME, f"{cause}: {error}") from error
        rank, host = silent.partition - further, name_of(silent.host)
        if rank < 0:
            cause += ": a node beside the workers (a parameter server) has not registered"
            raise EngineError(NAME, f"{cause} ({error})", host=host) from error
        cause += f": it has not registered ({error})"
        raise EngineError(NAME, cause, rank=rank, host=host) from error


def silent_node(places: Iterable[TaskPlace], registered: Collection[int]) -> TaskPlace | None:
    """Return the first started node without a registration.

    `registered` are numbers of nodes; the library's numbers begin with non-workers.
    """
    return min((place for place in places if place.partition not in registered), default=None)


def wait_feeding(
    context: SparkContext,
    cluster: TFCluster.TFCluster,
    run: TrainingRun,
    monitor: Monitor,
    should_stop: Callable[[], EngineError | None],
    profile: ResourceProfile | None,
) -> TrainingOutcome:
    """Feed the granules through Spark while the monitor watches.

    The monitor asks `should_stop` too, see :meth:`Monitor.wait`. The profile belongs to the feeding
    tasks, which run on the executors of the nodes.
    """
    workers = run.config.training.workers
    # The library's deadline covers the whole queue, the monitor's a step.
    timeout = run.config.training.stall_seconds * (QUEUE_BOUND + 1)
    feed = partial(feed_partition, run=run, workers=workers, nodes=cluster.cluster_info)
    granules = ranks_of(context, workers, profile).mapPartitionsWithIndex(feed)

    def feed_all() -> None:
        cluster.train(granules, num_epochs=1, feed_timeout=timeout)

    # A feeding task ends after its queue is empty, and needs the worker's manager until then.
    with SparkJob(context, NAME, "the feed", "granules for TensorFlowOnSpark", feed_all) as job:
        return monitor.wait(lambda: job.failure() or should_stop())
