"""TensorFlowOnSpark: a TFCluster on the executors, MultiWorkerMirroredStrategy between them.

The cluster is the library's own: its reservations, its nodes, its queues and its feed. What it
leaves open is closed here. The driver's monitor replaces its waits, which are long and poll;
a node function that never raises keeps it from stopping the SparkContext and the driver; and
its manager processes, which it leaves behind, are ended with the run.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext

from pipelines.quiet import quiet_import

# The library imports TensorFlow, which greets on standard error, and pkg_resources, which warns.
with quiet_import():
    from tensorflowonspark import TFCluster, TFSparkNode, reservation, util

from pipelines.engines.base import Mode, OnMetrics, monitor_for
from pipelines.engines.local import check_installed
from pipelines.errors import EngineError, EngineUnavailable, PipelineError
from pipelines.lanes.files import SCHEMA, LaneReader, decode
from pipelines.lanes.plan import share
from pipelines.session import executor_count, in_one_process
from pipelines.settings import Config
from pipelines.training.feed import StepWork
from pipelines.training.monitor import Monitor
from pipelines.training.run import TrainingOutcome, TrainingRun, WorkerTask

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

NAME = "tensorflowonspark"
# Granules that may wait in a worker's queue, which itself has no bound.
QUEUE_BOUND = 64
# Stands for the step in a message that carries the feed's error.
FEED_FAILED = -1
NODE_EXIT_SECONDS = 20.0
STOP_SECONDS = 5.0
PR_SET_PDEATHSIG = 1  # of prctl(2), Linux


class TensorFlowOnSparkEngine:
    """Trains on one TensorFlow node per executor."""

    name = NAME
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local`, on any number of workers.",
            choose_when="The result must not depend on the cluster, and executors are alike.",
            needs="An executor per worker with one task at a time (`spark.task.cpus` = "
            "`spark.executor.cores`), `spark.python.worker.reuse` true, `spark.speculation` false.",
        )
    }
    frameworks = ("tensorflow",)
    feeds = ("lanes", "spark", "memory")
    needs_spark = True

    def executors(self, config: Config) -> int:
        """See :class:`pipelines.engines.base.Engine`."""
        return config.training.workers

    def check(self, session: SparkSession | None, config: Config) -> None:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        check_installed("tensorflow", NAME)
        _check_cluster(session, config)

    def train(
        self, session: SparkSession | None, run: TrainingRun, on_metrics: OnMetrics
    ) -> TrainingOutcome:
        """See :class:`pipelines.engines.base.Engine`."""
        assert session is not None
        context = session.sparkContext
        conf = context.getConf()
        host = conf.get("spark.driver.host", "127.0.0.1")
        assert host is not None
        monitor = monitor_for(
            self.name, run, on_metrics, host, conf.get("spark.driver.bindAddress", host)
        )
        arguments = NodeArguments(run=run, monitor=monitor.address, token=monitor.token)
        group = f"{NAME}-{uuid.uuid4().hex[:8]}"
        spared = _SparedContext(context, group)
        try:
            with _workers_of_their_own(context), _reservations(host), monitor:
                cluster = _start_nodes(spared, arguments, run)
                if run.config.training.feed == "spark":
                    return _wait_feeding(context, group, cluster, run, monitor)
                return monitor.wait()
        except BaseException:
            context.cancelJobGroup(group)
            raise
        finally:
            # The nodes have left; their Spark job ends a moment later, before the session may.
            spared.job_ended.wait(NODE_EXIT_SECONDS)


@contextmanager
def _workers_of_their_own(context: SparkContext) -> Iterator[None]:
    """Has Spark start Python workers for the nodes that no other job has used.

    An evaluation before, in the same session, computes with TensorFlow in Spark's Python
    workers, and a node that is forked from such a one can no longer join a cluster. PySpark
    keeps workers apart by their environment.
    """
    context.environment["SENTENCE_PIPELINES_ROLE"] = "node"
    try:
        yield
    finally:
        del context.environment["SENTENCE_PIPELINES_ROLE"]


def _check_cluster(session: SparkSession, config: Config) -> None:
    """What the library needs of the cluster, said with the conf key."""
    context, training = session.sparkContext, config.training
    conf = context.getConf()
    if in_one_process(context.master):
        raise EngineUnavailable(
            "spark.master",
            f"engine {NAME} needs an executor per worker and `{context.master}` has none",
            f"for example local-cluster[{training.workers},{training.threads},1024]",
        )
    for key, unfit, remedy in (
        ("spark.python.worker.reuse", "false", "true"),
        ("spark.speculation", "true", "false"),
    ):
        if conf.get(key, remedy) == unfit:
            raise EngineUnavailable(
                key, f"engine {NAME} cannot run with `{unfit}`", f"set {remedy}"
            )
    _await_executors(session, config)
    cores = conf.get("spark.executor.cores")
    # Unset, it means all cores of a machine on some clusters, which only the sum then tells.
    per_executor = int(cores) if cores else context.defaultParallelism // executor_count(session)
    if per_executor // int(conf.get("spark.task.cpus", "1") or 1) > 1:
        raise EngineUnavailable(
            "spark.task.cpus",
            f"engine {NAME} needs one task at a time on an executor of {per_executor} cores",
            f"set it to {per_executor}, or spark.executor.cores to 1",
        )


def _await_executors(session: SparkSession, config: Config) -> None:
    """Waits until enough executors are there, since a cluster may still be starting them."""
    wanted = config.training.workers
    deadline = time.monotonic() + config.training.start_seconds
    while (there := executor_count(session)) < wanted:
        if time.monotonic() > deadline:
            raise EngineUnavailable(
                "training.workers",
                f"{wanted} workers need {wanted} executors and there are {there}",
                "give the cluster more executors (spark.executor.instances), or ask for fewer",
            )
        time.sleep(0.2)
    if config.training.feed == "spark" and there != wanted:
        raise EngineUnavailable(
            "training.feed",
            f"`spark` needs as many executors as workers, and there are {there} for {wanted}",
            "set training.workers to it, or training.feed to lanes",
        )


class NodeArguments(argparse.Namespace):
    """What every node is given; a namespace, as the library expects."""

    def __contains__(self, key: str) -> bool:
        # The library asks for `num_gpus` first thing on a node, before it looks at the manager
        # that an earlier run left in this Python worker; one that has ended must be forgotten,
        # or the look fails.
        manager = TFSparkNode.TFSparkNode.mgr
        if manager is not None:
            try:
                manager.get("state")
            except (OSError, EOFError):
                TFSparkNode.TFSparkNode.mgr = None
        return super().__contains__(key)


class _SparedContext:
    """The SparkContext, but for the calls with which the library would end the user's session.

    The nodes' job, which the library starts on a thread of its own, is put into a group, so
    that it can be cancelled without touching other jobs.
    """

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._group = group
        self.job_ended = threading.Event()
        self.job_ended.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def parallelize(self, values: Sequence[int], partitions: int) -> _GroupedNodes:
        """The nodes; asked for once by the library, to start them."""
        nodes = self._context.parallelize(values, partitions)
        return _GroupedNodes(self._context, nodes, self._group, self.job_ended)

    def stop(self) -> None:
        """Does nothing: the session is the user's."""

    def cancelAllJobs(self) -> None:  # noqa: N802 - the name that the library calls
        """Does nothing: other jobs are the user's."""


class _GroupedNodes:
    """The nodes as an RDD, of which the library uses this one call."""

    def __init__(
        self, context: SparkContext, nodes: RDD[int], group: str, job_ended: threading.Event
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._group = group
        self._job_ended = job_ended

    def foreachPartition(self, function: Callable[[Iterable[int]], None]) -> None:  # noqa: N802
        """Starts the nodes, in the job group of the run."""
        self._context.setJobGroup(self._group, "TensorFlow nodes", interruptOnCancel=True)
        self._job_ended.clear()
        try:
            self._nodes.foreachPartition(function)
        finally:
            self._job_ended.set()


def _start_nodes(
    context: _SparedContext, arguments: NodeArguments, run: TrainingRun
) -> TFCluster.TFCluster:
    """Starts the cluster; returns when all nodes have registered.

    Raises:
        EngineError: They have not within the deadline, or a node could not be started.
    """
    training = run.config.training
    # Module state of the library: the error of an earlier run must not end this one.
    TFCluster.tf_status = {}
    fed = training.feed == "spark"
    try:
        return TFCluster.run(
            context,
            train_node if fed else train_node_in_child,
            arguments,
            num_executors=training.workers,
            num_ps=0,
            input_mode=TFCluster.InputMode.SPARK if fed else TFCluster.InputMode.TENSORFLOW,
            master_node="chief",
            reservation_timeout=training.start_seconds,
            release_port=False,
        )
    except SystemExit:
        cause = str(TFCluster.tf_status.get("error", "the nodes' Spark job failed"))
        raise EngineError(NAME, cause) from None
    except Exception as error:
        # The library raises nothing more specific.
        within = f"within training.start_seconds ({training.start_seconds} s)"
        raise EngineError(NAME, f"the nodes did not start {within}: {error}") from error


@contextmanager
def _reservations(host: str) -> Iterator[None]:
    """Lets the library's reservation server listen at a known address, and stops it at the end.

    Its thread would listen for another minute after every run, and for ever after a failed
    start. Nodes ask it until all have registered, so it lives as long as the run.
    """
    # On all addresses, as the library binds it: a port may be taken on one of them alone.
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    names = {reservation.TFOS_SERVER_HOST: host, reservation.TFOS_SERVER_PORT: str(port)}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        # The library raises a bare Exception where its server has ended by itself.
        with suppress(Exception):
            client = reservation.Client((host, port))
            client.sock.settimeout(STOP_SECONDS)
            client.request_stop()
            client.close()


def _wait_feeding(
    context: SparkContext,
    group: str,
    cluster: TFCluster.TFCluster,
    run: TrainingRun,
    monitor: Monitor,
) -> TrainingOutcome:
    """Feeds the granules through Spark while the monitor watches."""
    workers = run.config.training.workers
    # The library's deadline is for the whole queue, the monitor's for a step.
    timeout = run.config.training.stall_seconds * (QUEUE_BOUND + 1)
    failure: list[EngineError] = []
    feed = partial(feed_partition, run=run, workers=workers, nodes=cluster.cluster_info)

    def feed_all() -> None:
        context.setJobGroup(group, "granules for TensorFlowOnSpark", interruptOnCancel=True)
        granules = context.parallelize(range(workers), workers).mapPartitionsWithIndex(feed)
        try:
            cluster.train(granules, num_epochs=1, feed_timeout=timeout)
        except Exception as error:  # noqa: BLE001 - carried to the waiting thread
            failure.append(EngineError(NAME, f"the feed failed ({_spark_cause(error)})"))

    feeder = threading.Thread(target=feed_all, name="feed", daemon=True)
    feeder.start()
    outcome = monitor.wait(lambda: failure[0] if failure else None)
    # The workers' managers must live until the feeding tasks have seen their queues empty.
    feeder.join(NODE_EXIT_SECONDS)
    return outcome


def _spark_cause(error: Exception) -> str:
    """What a Spark error says of the executor's Python exception: the last line of its trace."""
    lines = str(error).splitlines()
    python = [line for line in lines if re.match(r"[A-Za-z_][\w.]*(Error|Exception): ", line)]
    return (python or lines or [repr(error)])[-1 if python else 0]


def feed_partition(
    index: int,
    _: Iterator[int],
    *,
    run: TrainingRun,
    workers: int,
    nodes: Sequence[dict[str, Any]],
) -> Iterator[tuple[int, int, int, bytes]]:
    """One worker's granules in the order of the plan. Runs on an executor.

    Which worker gets which partition is Spark's choice. That is harmless: the granules of a
    step are the same, and so is the noise, which belongs to the granule.

    Yields:
        Step, epoch, granule number, and the granule as an Arrow message.
    """
    task = TaskContext.get()
    assert task is not None, "runs in a Spark task"
    if task.attemptNumber() > 0:
        # The first attempt's granules are used up; Spark would feed them once more.
        raise PipelineError(f"the task that fed worker {index} was lost")
    manager = TFSparkNode._get_manager(nodes, util.get_ip_address(), util.read_executor_id())
    queue = manager.get_queue("input")
    reader = LaneReader(run.lanes_folder, run.manifest)
    for step in run.plan.steps(run.first_step, run.last_step):
        for address in share(step, index, workers):
            while queue.qsize() >= QUEUE_BOUND:
                time.sleep(0.01)
            try:
                message = reader.batch(address).serialize().to_pybytes()
            except (OSError, pa.ArrowInvalid) as error:
                # Through the queue, since a task that fails is started again by Spark.
                yield FEED_FAILED, 0, 0, str(error).encode()
                return
            yield step.index, step.epoch, reader.number(address), message


def train_node(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """A worker in a process of its own. Runs on an executor.

    What goes wrong is reported to the driver's monitor, while an exception would make the
    library end the driver.
    """
    from pipelines.training.worker import run_worker

    run: TrainingRun = arguments.run
    task = WorkerTask(
        run=run,
        rank=node.executor_id,
        workers=node.num_workers,
        monitor=arguments.monitor,
        token=arguments.token,
    )
    feed = partial(spark_feed, task, node) if run.config.training.feed == "spark" else None
    _end_with_this_process(node.mgr._process.pid)
    run_worker(task, partial(_mirrored_exchange, node, run), feed)


def train_node_in_child(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """A worker in a child of Spark's Python worker. Runs on an executor.

    TensorFlow's cluster state lasts as long as its process, and Spark uses the Python worker
    again for the next run.
    """
    # fork, since a Python worker of Spark has no main module that a new interpreter could load.
    child = multiprocessing.get_context("fork").Process(target=_child, args=(arguments, node))
    child.start()
    if node.tmp_socket is not None:
        node.tmp_socket.close()
    # The deadlines are the monitor's: it ends the child, and the child ends with this worker.
    child.join()
    node.mgr.shutdown()


def _child(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """Ends with its parent, even where it is stopped and can read no word of the driver."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    train_node(arguments, node)


def _end_with_this_process(pid: int) -> None:
    """Ends another process, the library's manager, when this one ends, in whatever way.

    A small child waits for the end of a pipe that only this process holds.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return
    os.close(writing)
    os.read(reading, 1)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    os._exit(0)


def spark_feed(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> Iterator[StepWork]:
    """Takes granules from the library's queue. Runs on an executor."""
    run = task.run
    feed = node.get_data_feed()
    each = run.plan.granules_per_step // task.workers
    for index in range(run.first_step, run.last_step):
        items = feed.next_batch(each)
        for step, _, _, message in items:
            if step == FEED_FAILED:
                raise PipelineError(f"the feed failed: {message.decode()}")
        if [item[0] for item in items] != [index] * each:
            raise PipelineError(f"the feed brought {[item[0] for item in items]} for step {index}")
        granules = [
            decode(pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA), number, run.sides)
            for _, _, number, message in items
        ]
        yield StepWork(index, items[0][1], granules)


def _mirrored_exchange(node: TFSparkNode.TFNodeContext, run: TrainingRun) -> _MirroredExchange:
    """Starts this node's TensorFlow server and joins the others. Runs on an executor."""
    import tensorflow as tf

    if node.tmp_socket is not None:
        # Held until this moment, so that nobody else could take the port.
        node.release_port()
    implementation = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.AUTO,
        timeout_seconds=float(run.config.training.stall_seconds),
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return _MirroredExchange(strategy, node.executor_id)


class _MirroredExchange:
    """Collective operations of the strategy; see :class:`pipelines.training.exchange.Exchange`.

    Variables are plain ones that every worker holds: they start equal and receive equal
    updates. All tensors of a mean travel as one, since each collective operation has a price.
    """

    def __init__(self, strategy: Any, rank: int) -> None:
        import tensorflow as tf

        self.rank = rank
        self.workers = strategy.num_replicas_in_sync
        self._strategy = strategy
        self._gather = tf.function(self._gather_in_graph, autograph=False, reduce_retracing=True)

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        """The mean of each tensor over the workers; called while a graph is traced."""
        import tensorflow as tf

        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)

        def reduce() -> Any:
            # identity places the tensor on the replica's device, which the library asks for.
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(flat))

        total = self._strategy.run(reduce) / float(self.workers)
        pieces = tf.split(total, [int(tensor.shape.num_elements()) for tensor in tensors])
        return [
            tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    def gather(self, tensor: Any) -> Any:
        """The workers' tensors joined along the first axis, in the order of the ranks."""
        return self._gather(tensor)

    def _gather_in_graph(self, tensor: Any) -> Any:
        import tensorflow as tf

        def gather() -> Any:
            return tf.distribute.get_replica_context().all_gather(tf.identity(tensor), axis=0)

        return self._strategy.run(gather)
