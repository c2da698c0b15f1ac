"""The nodes of the cluster: workers, parameter servers, and their registration.

The library's registration server is unauthenticated: it listens at every address of the driver,
unpickles any message, and reveals the nodes' addresses and the keys of their queues. Here a
connection begins with the token of the run, and messages are Python literals. On a cluster with
encryption, a node also registers the fingerprint of its certificate for the other nodes.

Workers do not use TensorFlow's own servers: these listen at every address, and read and write files
for anybody. Synchronous workers form an authenticated ring. Asynchronous workers use parameter
servers, also nodes, which demand the token.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from typing_extensions import override

import pipelines.lean_tensorflow  # noqa: F401 - before the library imports TensorFlow, and Keras
from pipelines.engines.spark_engine import end_with_parent
from pipelines.errors import PipelineError
from pipelines.lanes.files import decode
from pipelines.lean_tensorflow import tensorflow as tf
from pipelines.quiet import quiet_import
from pipelines.runs.checkpoint import load_checkpoint, load_shapes
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.training.asynchronous import train_asynchronously
from pipelines.training.collectives.base import Collectives, SingleProcess
from pipelines.training.collectives.ring import BROKEN, Ring, RingCollectives
from pipelines.training.control.authenticated_server import (
    TOKEN_BYTES,
    Identity,
    SocketTokenServer,
    connect,
    make_identity,
)
from pipelines.training.control.reporter import Reporter
from pipelines.training.loop import run_worker, train_worker
from pipelines.training.parameter_server.client import (
    ServedParameters,
    ShardedParameters,
    SocketClient,
    means_server_lost,
    rows_of,
    shard_shapes,
)
from pipelines.training.parameter_server.server import (
    ParameterServer,
    ReadInto,
    SharedParameters,
    forms,
    read_exactly,
)
from pipelines.training.steppers.base import StepWork

# The library imports TensorFlow, which greets on standard error, and pkg_resources, which warns.
with quiet_import():
    from tensorflowonspark import TFManager, TFSparkNode, reservation, util

CONNECT_SECONDS = 20.0
MAX_MESSAGE_BYTES = 1 << 24
_LENGTH = struct.Struct("!I")


_library_server = reservation.Server
_library_manager = TFManager.start
_patching = threading.Lock()


@dataclass(frozen=True)
class NodePlace:
    """A node's address, and its certificate's fingerprint; None for plain connections.

    The library's own host is the one on the route to the public internet, and may differ.
    """

    address: tuple[str, int]
    fingerprint: str | None


# In a node's process: all nodes of the run, after the registration.
_places: dict[int, NodePlace] = {}
_own_identity: Identity | None = None


@contextmanager
def registering_at(server: RegistrationServer, seconds: float) -> Iterator[None]:
    """Make the library's new cluster register at a server. Runs on the driver.

    Raises:
        TimeoutError: Another run takes longer than `seconds` to start its cluster.
    """
    if not _patching.acquire(timeout=seconds):
        raise TimeoutError(f"another run has been starting its nodes for {seconds:.0f} s")
    reservation.Server = lambda count: server
    try:
        yield
    finally:
        reservation.Server = _library_server
        _patching.release()


class RegistrationServer(reservation.Server):  # type: ignore[misc] # the library has no types
    """The server of the nodes' registrations; a context manager. Runs on the driver.

    Nodes poll it until all have registered; it lives as long as the run. `host` is the driver's
    address for the executors; `identity` encrypts the connections.
    """

    def __init__(
        self, count: int, host: str, bind: str, token: str, identity: Identity | None = None
    ) -> None:
        super().__init__(count)
        self._host = host
        self._server = SocketTokenServer((bind, 0), self._attend, token=token, identity=identity)
        self._answers: dict[str, Callable[[Any], Any]] = {
            "REG": self.reservations.add,
            "QUERY": lambda _: self.reservations.done(),
            "QINFO": lambda _: self.reservations.get(),
        }

    def __enter__(self) -> RegistrationServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> tuple[str, int]:
        """Begin to listen; return the address for the nodes."""
        self._server.open()
        return self._host, self._server.server_address[1]

    def stop(self) -> None:
        """End all connections and close the port."""
        self._server.close()

    def _attend(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            if not self._server.authenticate(connection, lines.read(TOKEN_BYTES)):
                return
            while True:
                kind, data = _receive(lines.readinto)
                _send(connection, self._answers[kind](data))


class RegistrationClient(reservation.Client):  # type: ignore[misc] # the library has no types
    """A node's connection to the registration. Runs on an executor."""

    def __init__(
        self, server_addr: tuple[str, int], token: str, fingerprint: str | None = None
    ) -> None:
        self.server_addr = server_addr
        self._encrypts = fingerprint is not None
        self.sock = connect(server_addr, CONNECT_SECONDS, fingerprint)
        self.sock.sendall(token.encode())

    def register(self, reservation: dict[str, Any]) -> Any:
        """Register a node, with its address on the route to the driver."""
        global _own_identity  # noqa: PLW0603 - the library hands nothing from here to the node
        _own_identity = make_identity() if self._encrypts else None
        known = {
            "address": self.sock.getsockname()[0],
            "fingerprint": _own_identity and _own_identity.fingerprint,
        }
        return super().register(reservation | known)

    def get_reservations(self) -> list[dict[str, Any]]:
        """Return the registered nodes."""
        nodes: list[dict[str, Any]] = super().get_reservations()
        for node in nodes:
            address = (node["address"], node["port"])
            _places[node["executor_id"]] = NodePlace(address, node["fingerprint"])
        return nodes

    def _request(self, msg_type: str, msg_data: Any = None) -> Any:
        _send(self.sock, (msg_type, msg_data))
        return _receive(self.sock.recv_into)


def join_run(token: str, fingerprint: str | None = None) -> None:
    """Make the library of this process register with a run. Runs on an executor.

    The fingerprint belongs to the driver's certificate; None for plain connections.
    """
    reservation.Client = lambda address: RegistrationClient(address, token, fingerprint)
    TFManager.start = _start_local_manager


def node_place(number: int) -> NodePlace:
    """Return a node's place, after the registration of all nodes. Runs on an executor."""
    return _places[number]


def own_identity() -> Identity | None:
    """Return the identity of this node's server, if it encrypts. Runs on an executor.

    The node's registration made it, in this process or before the fork of this process.
    """
    return _own_identity


def _start_local_manager(authkey: bytes, queues: list[str], mode: str = "local") -> Any:
    """Start a node's manager for this host alone.

    The library exposes the managers of parameter servers at every address so that the driver can
    end them; here the nodes end them.
    """
    return _library_manager(authkey, queues)


def _send(connection: socket.socket, message: Any) -> None:
    """Send plain values: numbers, strings, bytes, and tuples, lists and dicts of them."""
    data = repr(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(readinto: ReadInto) -> Any:
    """Return the values of the next message.

    Raises:
        ValueError: The message is too long, or no literal.
    """
    (size,) = _LENGTH.unpack(read_exactly(readinto, _LENGTH.size))
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return ast.literal_eval(read_exactly(readinto, size).decode())


def ring_collectives(
    task: WorkerTask, node: TFSparkNode.TFNodeContext, afterwards: ExitStack
) -> Collectives:
    """Join the ring of the workers; `afterwards` leaves it. Runs on an executor.

    Raises:
        TimeoutError: A worker is missing after ``training.start_seconds``.
        OSError: The library's reserved port is taken, or another worker is out of reach.
        PipelineError: Another process answers in the next worker's place.
    """
    if task.workers == 1:
        _release_port(node)
        return SingleProcess()
    # The library's numbers begin with the parameter servers.
    first = node.executor_id - task.rank
    places = [node_place(first + rank) for rank in range(task.workers)]
    # The library still holds this port, so no other process can have taken it.
    ring = Ring(
        task.rank,
        [place.address for place in places],
        task.token,
        own_identity(),
        places[(task.rank + 1) % task.workers].fingerprint,
    )
    afterwards.enter_context(ring)
    _release_port(node)
    training = task.run.config.training
    # A worker may still read its checkpoint while the others wait for it in the first step. The
    # monitor counts training.stall_seconds only after all are ready.
    wait_seconds = max(training.start_seconds, training.stall_seconds)
    ring.join(float(training.start_seconds), float(wait_seconds))
    return TensorRing(ring)


def _release_port(node: TFSparkNode.TFNodeContext) -> None:
    """Close the library's socket for this node's reserved port, if it is open."""
    if node.tmp_socket is not None:
        node.release_port()


def means_peer_lost(error: Exception) -> bool:
    """Return whether the ring broke: its own error, or TensorFlow's for it."""
    return isinstance(error, OSError | tf.errors.OpError) and BROKEN in str(error)


class TensorRing(RingCollectives):
    """A ring of workers for TensorFlow's tensors."""

    @override
    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the mean of each tensor over the workers; called while a graph is traced.

        All tensors travel as one, since each operation waits for the slowest worker.
        """
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
        mean = tf.numpy_function(self._ring.sum, [flat], flat.dtype) / float(self.workers)
        mean.set_shape(flat.shape)
        pieces = tf.split(mean, [int(tensor.shape.num_elements()) for tensor in tensors])
        return [
            tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)
        ]

    @override
    def all_gather(self, tensor: Any) -> Any:
        return tf.convert_to_tensor(super().all_gather(tensor))

    @override
    def reduce_scatter(self, tensor: Any) -> Any:
        return tf.convert_to_tensor(super().reduce_scatter(tensor))


# The most granules in a worker's queue, which itself has no bound.
QUEUE_BOUND = 64
# In place of the step, in messages without a granule: a partition's number, or the feed's error.
PARTITION, FAILED = -1, -2

Message: TypeAlias = tuple[int, int, int, bytes]


def feed_partition(
    index: int,
    _: Iterator[int],
    *,
    run: TrainingRun,
    workers: int,
    nodes: Sequence[dict[str, Any]],
) -> Iterator[Message]:
    """Yield one worker's granules in the order of the plan. Runs on an executor.

    The partition number comes first; then, for each granule, step, epoch, granule number and an
    Arrow message. Spark assigns partitions to workers in any order. That is harmless: the granules
    of a step stay the same, and the noise belongs to the granule.
    """
    task = TaskContext.get()
    assert task is not None, "runs in a Spark task"
    if task.attemptNumber() > 0:
        # Spark would feed granules again that the first attempt has fed.
        raise PipelineError(f"the task that fed worker {index} was lost")
    manager = TFSparkNode._get_manager(nodes, util.get_ip_address(), util.read_executor_id())
    queue = manager.get_queue("input")
    reader = run.lane_reader()
    yield PARTITION, 0, index, b""
    for step, addresses in reader.ahead(run.shares(index, workers)):
        for address in addresses:
            while queue.qsize() >= QUEUE_BOUND:
                time.sleep(0.01)
            try:
                message = reader.message(address).to_pybytes()
            except (OSError, PipelineError) as error:
                # Through the queue, since Spark starts a failed task again.
                yield FAILED, 0, 0, str(error).encode()
                return
            yield step.index, step.epoch, reader.number(address), message


def spark_feed(task: WorkerTask, queue: Any) -> Iterator[StepWork]:
    """Yield a worker's steps from its partition. Runs on an executor.

    Raises:
        PipelineError: The other end failed, or the next step did not arrive.
    """
    run = task.run
    wanted = [(source.sides, source.teacher) for source in run.by_source]
    partition = _take(queue, 1)[0][2]
    for step, addresses in replace(task, rank=partition).steps():
        items = _take(queue, len(addresses))
        if [item[0] for item in items] != [step.index] * len(addresses):
            brought = [item[0] for item in items]
            raise PipelineError(f"the feed brought {brought} for step {step.index}")
        granules = [
            decode(
                pa.ipc.read_record_batch(pa.py_buffer(message), run.manifest.schema),
                number,
                *wanted[step.source],
            )
            for _, _, number, message in items
        ]
        yield StepWork.of(step, granules)


def _take(queue: Any, count: int) -> Sequence[Message]:
    """Return the next messages; raise the feed's error if one has it."""
    items: Sequence[Message] = queue.next_batch(count)
    for step, _, _, message in items:
        if step == FAILED:
            raise PipelineError(f"the feed failed: {message.decode()}")
    return items


PAUSE_SECONDS = 0.1


def parameter_server(
    run: TrainingRun, node: TFSparkNode.TFNodeContext, token: str
) -> ParameterServer:
    """Return this node's share of the parameters, listening. Runs on an executor.

    Raises:
        OSError: The library's reserved port is taken.
    """
    rows = rows_of(node.task_index, run.config.training.parameter_servers)
    store = SharedParameters(run, load_checkpoint(run.run_folder, run.first_step, rows))
    # The library still holds this port, at every address, so no other process can have taken it.
    server = ParameterServer(store, node_place(node.executor_id).address, token, own_identity())
    _release_port(node)
    return server


def sharded_parameters(task: WorkerTask, node: TFSparkNode.TFNodeContext) -> ShardedParameters:
    """Wait for all servers; return a worker's connections to them. Runs on an executor.

    Raises:
        TimeoutError: A server is missing after ``training.start_seconds``.
    """
    run, training = task.run, task.run.config.training
    # A worker does not listen.
    _release_port(node)
    shapes = load_shapes(run.run_folder, run.first_step)
    deadline = time.monotonic() + training.start_seconds
    parts = []
    for server in range(training.parameter_servers):
        shard = shard_shapes(shapes, server, training.parameter_servers)
        # The library's numbers begin with the parameter servers.
        place = node_place(server)
        client = SocketClient(
            place.address,
            task.token,
            forms(training.mode, shard),
            float(training.stall_seconds),
            place.fingerprint,
        )
        parts.append(ServedParameters(client, task))
        _await(parts[-1], client.address, deadline, training.start_seconds)
    return ShardedParameters(parts)


def _await(part: ServedParameters, address: tuple[str, int], deadline: float, seconds: int) -> None:
    while True:
        try:
            part.progress()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"there was no parameter server at {address[0]}:{address[1]} within"
                    f" training.start_seconds ({seconds} s)"
                ) from None
            time.sleep(PAUSE_SECONDS)
        else:
            return


# The library looks once a second for the end of its wait for a parameter server.
RELEASE_SECONDS = 5.0
# For the response to its last call; without it, Spark would start the server a second time.
ANSWER_SECONDS = 1.0


class NodeArguments(argparse.Namespace):
    """The arguments of every node; a namespace, as the library expects.

    Attributes:
        monitor: Host and port of the driver's monitor.
        token: Of the run.
        fingerprint: Of the driver's certificate; None without encryption.
        servers: Nodes with parameters.
        spares: Nodes that block executors without a worker for Spark's feeding tasks.
    """

    run: TrainingRun
    monitor: tuple[str, int]
    token: str
    fingerprint: str | None
    servers: int
    spares: int

    def __contains__(self, key: str) -> bool:
        # The library looks for `num_gpus` first on a node, before the registration, and before its
        # look at an earlier run's manager in this Python worker. That look fails on an ended
        # manager, which must go.
        join_run(self.token, self.fingerprint)
        manager = TFSparkNode.TFSparkNode.mgr
        if manager is not None:
            try:
                manager.get("state")
            except (OSError, EOFError):
                TFSparkNode.TFSparkNode.mgr = None
        return super().__contains__(key)


def run_node(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """Run a node in its role: worker, parameter server or spare. Runs on an executor.

    For its parameter servers and for workers fed by Spark, the library calls it in a separate
    process. Errors go to the driver's monitor: after an exception the library would end the driver.
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
    """Train as a worker until the run ends."""
    # The library's numbers begin with the parameter servers, spare nodes among them.
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
    """Train in a child of Spark's Python worker.

    TensorFlow's cluster state lasts as long as its process, and Spark reuses the Python worker.
    """
    # fork, since a Python worker of Spark has no main module for a new interpreter.
    child = multiprocessing.get_context("fork").Process(target=_child, args=(arguments, node))
    child.start()
    if node.tmp_socket is not None:
        node.tmp_socket.close()
    # Without a timeout: the monitor has the deadlines and ends the child.
    child.join()
    node.mgr.shutdown()


def _child(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    end_with_parent()
    _end_manager_with_this_process(node)
    _train(arguments, node)


def _serve(arguments: NodeArguments, node: TFSparkNode.TFNodeContext) -> None:
    """Hold parameters, or nothing on a spare node, until the driver ends the run.

    The library has started this process, and its parent waits for a message from the library's
    driver.
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
    """End the library's wait for a parameter server, and then its manager."""
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
    # A killed manager leaves the folder of its socket behind.
    folder = Path(node.mgr.address).parent
    if folder.name.startswith("pymp-"):
        shutil.rmtree(folder, ignore_errors=True)


def _after_this_process(act: Callable[[], None]) -> None:
    """Run a function when this process ends, in whatever way.

    A small child waits for the end of a pipe; only this process holds its other end.
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
