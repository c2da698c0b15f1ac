"""The cluster of a mesh: the meeting of its workers, and their transport. Runs on executors."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from pipelines.engines.horovod.rendezvous import RendezvousClient, meet
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.collectives.interfaces import own_address
from pipelines.training.collectives.ring import BROKEN, Ring, RingCollectives
from pipelines.training.control.authenticated_server import make_identity
from pipelines.training.loop import run_worker

JOB = "mesh"
_LOST = ("UnavailableError", "AbortedError", "CancelledError")
"""TensorFlow's errors for a lost server, also by way of another one."""


class _Place(NamedTuple):
    """The addresses of a worker.

    Attributes:
        host: Its address on the route to the driver.
        ring: Port of its place in the ring.
        server: Port of its TensorFlow server.
        fingerprint: Of its certificate in the ring; None for unencrypted connections.
    """

    host: str
    ring: int
    server: int
    fingerprint: str | None


def train_in_mesh(store: RendezvousClient, task: WorkerTask) -> None:
    """Train as a worker of the mesh. Runs on an executor, in a process of its own.

    A TensorFlow server lasts as long as its process. Workers leave their places in the store.
    """
    with ExitStack() as afterwards:
        join = partial(join_mesh, task, store, afterwards)
        run_worker(task, join, stepper=JOB, means_peer_lost=means_peer_lost)


class MeshRing(RingCollectives):
    """The transport of a mesh's stepper over a joined ring; see :class:`.stepper.MeshCollectives`.

    TensorFlow's servers move the graph's tensors. `target` is this worker's server.
    """

    def __init__(self, ring: Ring, target: str) -> None:
        super().__init__(ring)
        self.target = target
        self.devices = [f"/job:{JOB}/task:{rank}/device:CPU:0" for rank in range(ring.workers)]


def means_peer_lost(error: Exception) -> bool:
    """Return whether another worker is gone: an error of the ring, or of TensorFlow's servers."""
    return BROKEN in str(error) or type(error).__name__ in _LOST


class Alone(SingleProcess):
    """The transport of a single worker, which needs no server."""

    target = ""
    devices = ("/device:CPU:0",)


def join_mesh(task: WorkerTask, store: RendezvousClient, afterwards: ExitStack) -> MeshRing | Alone:
    """Start this worker's server, and join the ring of the workers; `afterwards` leaves it.

    Raises:
        PipelineError: Some workers are missing.
        TimeoutError, OSError: The ring cannot be made.
    """
    if task.workers == 1:
        return Alone()
    training, host = task.run.config.training, own_address(task.monitor)
    identity = None if task.fingerprint is None else make_identity()
    with _reserved(host) as ring_port, _reserved("") as server_port:
        ports = ring_port.getsockname()[1], server_port.getsockname()[1]
        place = _Place(host, *ports, None if identity is None else identity.fingerprint)
        places = meet(store, task, place, training.start_seconds)
        # The ring and the server take their ports before the reservation ends, so that no other
        # process can.
        following = places[(task.rank + 1) % task.workers].fingerprint
        addresses = [(place.host, place.ring) for place in places]
        ring = Ring(task.rank, addresses, task.token, identity, following)
        afterwards.enter_context(ring)
        target = _server(task, places)
    # The chief may still hand out the weights after the workers have joined.
    wait_seconds = max(training.start_seconds, training.stall_seconds)
    ring.join(float(training.start_seconds), float(wait_seconds))
    return MeshRing(ring, target)


def _reserved(host: str) -> socket.socket:
    """Hold a free port, open to a server of this process."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind((host, 0))
    return held


def _server(task: WorkerTask, places: Sequence[_Place]) -> str:
    """Start this worker's TensorFlow server; return a session's target."""
    from pipelines.engines.mesh.library import tf1
    from pipelines.engines.mesh.stepper import session_config

    hosts = [f"[{place.host}]" if ":" in place.host else place.host for place in places]
    addresses = [f"{host}:{place.server}" for host, place in zip(hosts, places, strict=True)]
    server = tf1.train.Server(
        {JOB: addresses},
        job_name=JOB,
        task_index=task.rank,
        config=session_config(task.run.config.training.threads),
    )
    return str(server.target)
