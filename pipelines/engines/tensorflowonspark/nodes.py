"""What runs on an executor: a worker, a parameter server, and how long either lives."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from pipelines.engines.processes import end_with_parent
from pipelines.engines.tensorflowonspark.collectives import means_peer_lost, ring_collectives
from pipelines.engines.tensorflowonspark.feeding import spark_feed
from pipelines.engines.tensorflowonspark.registration import join_run
from pipelines.engines.tensorflowonspark.servers import parameter_server, sharded_parameters
from pipelines.quiet import quiet_import
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.asynchronous import train_asynchronously
from pipelines.training.control.reporter import Reporter
from pipelines.training.loop import train_worker
from pipelines.training.parameter_server.client import means_server_lost
from pipelines.training.worker import run_worker

with quiet_import():
    from tensorflowonspark import TFSparkNode

# The library checks once a second whether its wait for a parameter server may end.
RELEASE_SECONDS = 5.0
# For the response to its last call, without which Spark would start the server a second time.
ANSWER_SECONDS = 1.0


class NodeArguments(argparse.Namespace):
    """What every node is given; a namespace, as the library expects.

    Attributes:
        monitor: Host and port of the driver's monitor.
        token: Shows that a node belongs to the run.
        fingerprint: Of the driver's certificate; none where the cluster does not encrypt.
        servers: Nodes that hold parameters.
        spares: Nodes that only keep Spark from feeding an executor that has no worker.
    """

    run: TrainingRun
    monitor: tuple[str, int]
    token: str
    fingerprint: str | None
    servers: int
    spares: int

    def __contains__(self, key: str) -> bool:
        # The library asks for `num_gpus` first thing on a node, before it registers, and before
        # it looks at the manager that an earlier run left in this Python worker; one that has
        # ended must be forgotten, or the look fails.
        join_run(self.token, self.fingerprint)
        manager = TFSparkNode.TFSparkNode.mgr
        if manager is not None:
            try:
                manager.get("state")
            except (OSError, EOFError):
                TFSparkNode.TFSparkNode.mgr = None
        return super().__contains__(key)


def run_node(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """A node, whatever it is to be. Runs on an executor.

    The library calls it in a process of its own where Spark feeds the workers, and always for
    what it takes for a parameter server. What goes wrong is reported to the driver's monitor,
    while an exception would make the library end the driver.
    """
    if node.job_name == "ps":
        _serve(arguments, node)
    elif arguments.run.config.training.feed == "spark":
        _end_manager_with_this_process(node)
        _train(arguments, node)
    else:
        _train_in_child(arguments, node)


def _task(arguments: NodeArguments, node: TFSparkNode.TFNodeContext, rank: int) -> WorkerTask:
    return WorkerTask(
        run=arguments.run,
        rank=rank,
        workers=node.num_workers,
        monitor=arguments.monitor,
        token=arguments.token,
        fingerprint=arguments.fingerprint,
    )


def _train(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """A worker, from its first to its last moment."""
    # The library numbers what it takes for parameter servers first.
    task = _task(arguments, node, node.executor_id - arguments.servers - arguments.spares)
    fed = arguments.run.config.training.feed == "spark"
    feed = (lambda: spark_feed(task, node.get_data_feed())) if fed else None
    if arguments.servers:
        reach = partial(sharded_parameters, task, node)
        run_worker(task, reach, feed, train_asynchronously, means_peer_lost=means_server_lost)
        return
    with ExitStack() as afterwards:
        join = partial(ring_collectives, task, node, afterwards)
        run_worker(task, join, feed, train_worker, means_peer_lost=means_peer_lost)


def _train_in_child(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """A worker in a child of Spark's Python worker.

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
    end_with_parent()
    _end_manager_with_this_process(node)
    _train(arguments, node)


def _serve(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """Holds parameters, or nothing on a spare node, until the driver ends the run.

    The library has started this process, whose parent waits for a message of the library's driver.
    """
    end_with_parent()
    _after_this_process(partial(_release_parent, node))
    with Reporter(_task(arguments, node, node.num_workers + node.task_index)) as reporter:
        try:
            with ExitStack() as serving:
                if node.task_index < arguments.servers:
                    server = parameter_server(arguments.run, node, arguments.token)
                    serving.enter_context(server)
                reporter.ready()
                reporter.serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver raises it
            reporter.failed(error)


def _release_parent(node: TFSparkNode.TFNodeContext) -> None:
    """Ends the library's wait for a parameter server, and then the manager where it waits."""
    with suppress(OSError, EOFError):
        control = node.mgr.get_queue("control")
        control.put(None)
        waiting = threading.Thread(target=control.join, daemon=True)
        waiting.start()
        waiting.join(RELEASE_SECONDS)
        time.sleep(ANSWER_SECONDS)
    _end_manager(node)


def _end_manager_with_this_process(node: TFSparkNode.TFNodeContext) -> None:
    _after_this_process(partial(_end_manager, node))


def _end_manager(node: TFSparkNode.TFNodeContext) -> None:
    with suppress(ProcessLookupError):
        os.kill(node.mgr._process.pid, signal.SIGTERM)
    # The folder of its socket, which it removes at an end of its own choice only.
    folder = Path(node.mgr.address).parent
    if folder.name.startswith("pymp-"):
        shutil.rmtree(folder, ignore_errors=True)


def _after_this_process(act: Callable[[], None]) -> None:
    """Does something when this process ends, in whatever way.

    A small child waits for the end of a pipe that only this process holds.
    """
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return
    try:
        os.close(writing)
        os.read(reading, 1)
        act()
    finally:
        os._exit(0)
