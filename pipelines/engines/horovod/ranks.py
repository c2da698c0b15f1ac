"""A rank: what runs on an executor, in a process of its own.

Horovod starts once in a process, and Spark uses its Python workers again, so each rank is a
child of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module

from pipelines.engines.horovod.collectives import HorovodCollectives, means_peer_lost
from pipelines.engines.horovod.rendezvous import Place, RendezvousClient, meet
from pipelines.engines.spark_engine import run_in_child
from pipelines.errors import PipelineError
from pipelines.quiet import quiet_import
from pipelines.runs.run import WorkerTask
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
# With an interface given, Horovod looks no host's name up.
GLOO_INTERFACE = "HOROVOD_GLOO_IFACE"
GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


@dataclass(frozen=True, kw_only=True)
class RankMaker:
    """What the ranks are made from; travels to the executors.

    Attributes:
        task: Of rank 0.
        rendezvous: Host and port of the driver's :class:`.rendezvous.Rendezvous`.
        token: Of the rendezvous.
    """

    task: WorkerTask
    rendezvous: tuple[str, int]
    token: str

    def start(self, ranks: Iterable[int]) -> None:
        """Runs a rank in a child process, and waits for its end. Runs in a Spark task.

        Args:
            ranks: One number.
        """
        (rank,) = ranks
        run_in_child(replace(self.task, rank=rank), self._work)

    def _work(self, task: WorkerTask) -> None:
        with ExitStack() as afterwards:
            join = partial(self._join, task, afterwards)
            run_worker(task, join, means_peer_lost=means_peer_lost)

    def _join(self, task: WorkerTask, afterwards: ExitStack) -> HorovodCollectives:
        """Starts Horovod in this process, once all ranks are there; leaves it in the end."""
        training = task.run.config.training
        module, name = COLLECTIVES[training.framework]
        try:
            with quiet_import():
                collectives_class = getattr(import_module(module), name)
        except ImportError as error:
            raise PipelineError(
                f"Horovod for {training.framework} cannot be imported ({error}): install the wheel"
                " on every executor, see docs/environment.md"
            ) from error
        client = RendezvousClient(self.rendezvous, self.token)
        own = Place(os.uname().nodename, os.environ.get(CUDA_DEVICES, ""))
        places = meet(client, task, own, training.start_seconds)
        os.environ |= environment(places, task.rank, gpus_given_by_spark())
        # Later than any deadline of the monitor's, which can tell the worker that is at fault.
        wait = training.stall_seconds + SILENCE_SECONDS
        os.environ |= client.environment()
        # What the cluster's administrator has set for its network stays.
        os.environ.setdefault(GLOO_TIMEOUT, str(int(wait)))
        os.environ.setdefault(GLOO_INTERFACE, interface_of(client.own_address))
        collectives: HorovodCollectives = collectives_class(training.compression)
        afterwards.callback(collectives.leave)
        return collectives


def environment(places: Sequence[Place], rank: int, given: Sequence[str]) -> dict[str, str]:
    """What Horovod and the frameworks read of a rank's place.

    Args:
        places: Of each rank.
        given: Addresses of the GPUs that Spark gave its task.
    """
    hosts = [place.host for place in places]
    own = hosts[rank]
    local = hosts[:rank].count(own)
    # Hosts that have as many ranks, one of which is the counterpart of this one.
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
        "HOROVOD_LOCAL_SIZE": str(hosts.count(own)),
        "HOROVOD_CROSS_RANK": str(counterparts.index(own)),
        "HOROVOD_CROSS_SIZE": str(len(counterparts)),
        # A part of the store's keys, in which a real name might be no valid path.
        "HOROVOD_HOSTNAME": f"host-{names.index(own)}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "LOCAL_RANK": str(local),
        # TensorFlow would take every GPU that it sees.
        CUDA_DEVICES: ",".join(gpus),
    }
