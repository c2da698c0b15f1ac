"""The ranks of Horovod, each in a process of its own on an executor, and their exchange.

Horovod starts only once in a process, and Spark reuses its Python workers. So each rank is a child
process of a Python worker.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any

from pipelines.engines.horovod.rendezvous import Place, RendezvousClient, meet
from pipelines.errors import PipelineError
from pipelines.quiet import quiet_import
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.interfaces import interface_of
from pipelines.training.control.monitor import SILENCE_SECONDS
from pipelines.training.devices import gpus_given_by_spark
from pipelines.training.loop import run_worker

# The collectives of each framework; imported only in a rank.
COLLECTIVES = {
    "tensorflow": ("pipelines.engines.horovod.tensorflow", "TensorFlowCollectives"),
    "torch": ("pipelines.engines.horovod.torch", "TorchCollectives"),
}
CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
# With this variable, Horovod looks up no host names.
GLOO_INTERFACE = "HOROVOD_GLOO_IFACE"
FUSION_BYTES = "HOROVOD_FUSION_THRESHOLD"
GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


def train_rank(client: RendezvousClient, task: WorkerTask) -> None:
    """Train as one of Horovod's ranks, in a process of its own. Runs on an executor."""
    with ExitStack() as afterwards:
        join = partial(_join, client, task, afterwards)
        run_worker(task, join, means_peer_lost=means_peer_lost)


def _join(client: RendezvousClient, task: WorkerTask, afterwards: ExitStack) -> HorovodCollectives:
    """Wait for all ranks and start Horovod in this process; `afterwards` leaves it."""
    training = task.run.config.training
    module, name = COLLECTIVES[training.framework]
    try:
        with quiet_import():
            collectives_class = getattr(import_module(module), name)
    except ImportError as error:
        raise PipelineError(
            f"Horovod for {training.framework} cannot be imported ({error}). Install the wheel"
            " on every executor, see docs/reference/environment.md"
        ) from error
    place = Place(os.uname().nodename, os.environ.get(CUDA_DEVICES, ""))
    places = meet(client, task, place, training.start_seconds)
    os.environ |= environment(places, task.rank, gpus_given_by_spark()) | client.environment()
    # Later than any deadline of the monitor, since only the monitor can name the worker at fault.
    wait = training.stall_seconds + SILENCE_SECONDS
    # The settings of the cluster's administrator for its network stay.
    os.environ.setdefault(GLOO_TIMEOUT, str(int(wait)))
    os.environ.setdefault(GLOO_INTERFACE, interface_of(client.own_address))
    # Vectors that Horovod joined by the clock would have another order of sums in each run.
    os.environ.setdefault(FUSION_BYTES, "0")
    collectives: HorovodCollectives = collectives_class(training.compression)
    afterwards.callback(collectives.leave)
    return collectives


def means_peer_lost(error: Exception) -> bool:
    """Return whether Horovod gave up because of another rank: its own error, or TensorFlow's."""
    name = type(error).__name__
    return name == "HorovodInternalError" or (name == "UnknownError" and "Horovod" in str(error))


class HorovodCollectives(Collectives):
    """Starts Horovod in this process; see :class:`pipelines.training.collectives.base.Collectives`.

    Tensors of one call travel as one vector, since each collective operation costs time. The order
    of the sums is then fixed. The library is ``horovod.torch`` or ``horovod.tensorflow``.
    """

    def __init__(self, library: Any, compression: str) -> None:
        library.init()
        self.rank: int = library.rank()
        self.workers: int = library.size()
        self._library = library
        self._exact = library.Compression.none
        self._compression = getattr(library.Compression, compression)

    def all_reduce_mean(self, tensors: Sequence[Any]) -> list[Any]:
        """Return each tensor's mean over the workers; in TensorFlow, while a graph is traced."""
        means: dict[int, Any] = {}
        for name, (compression, places) in self._formats(tensors).items():
            of_format = [tensors[place] for place in places]
            means |= zip(places, self._mean(name, of_format, compression), strict=True)
        return [means[place] for place in range(len(tensors))]

    def _formats(self, tensors: Sequence[Any]) -> dict[str, tuple[Any, Sequence[int]]]:
        """Return compression and places of the tensors that travel together, by a name."""
        everything = range(len(tensors))
        if self._compression is self._exact:
            return {"all": (self._exact, everything)}
        # The loss is one number for the user's eyes: it stays fp32.
        numbers = [place for place in everything if len(tensors[place].shape) == 0]
        arrays = [place for place in everything if place not in numbers]
        found = {"gradients": (self._compression, arrays), "numbers": (self._exact, numbers)}
        return {name: (kind, places) for name, (kind, places) in found.items() if places}

    @abstractmethod
    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""

    def reduce_scatter(self, tensor: Any) -> Any:
        """See :meth:`pipelines.training.collectives.base.Collectives.reduce_scatter`."""
        return self._library.reducescatter(tensor, op=self._library.Sum, name="reduce_scatter")

    def leave(self) -> None:
        """End Horovod's threads and connections; all workers call it."""
        self._library.shutdown()

    @abstractmethod
    def _mean(self, name: str, tensors: Sequence[Any], compression: Any) -> list[Any]:
        """Return the means, by one collective operation with the same name on all workers."""


def environment(places: Sequence[Place], rank: int, given: Sequence[str]) -> dict[str, str]:
    """Return a rank's place as the variables of Horovod and the frameworks.

    `given` are the addresses of Spark's GPUs for the task.
    """
    hosts = [place.host for place in places]
    host = hosts[rank]
    local = hosts[:rank].count(host)
    # Hosts with a rank of this local number, the counterpart of this one.
    names = list(dict.fromkeys(hosts))
    counterparts = [name for name in names if hosts.count(name) > local]
    visible = [name for name in places[rank].devices.split(",") if name]
    # Each executor of a host may have GPUs of its own.
    turn = places[:rank].count(places[rank]) % max(len(visible), 1)
    gpus = given or visible[turn : turn + 1]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(hosts)),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(host)),
        "HOROVOD_CROSS_RANK": str(counterparts.index(host)),
        "HOROVOD_CROSS_SIZE": str(len(counterparts)),
        # A part of the store's keys: a real name might be no valid path.
        "HOROVOD_HOSTNAME": f"host-{names.index(host)}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "LOCAL_RANK": str(local),
        # TensorFlow would take every GPU that it sees.
        CUDA_DEVICES: ",".join(gpus),
    }
