"""A rank: what runs on an executor, in a process of its own.

Horovod starts once in a process, and Spark uses its Python workers again, so each rank is a
child of one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from typing import NamedTuple

import psutil

from pipelines.engines.horovod.exchange import HorovodExchange, means_peer_lost
from pipelines.engines.processes import run_in_child
from pipelines.errors import PipelineError
from pipelines.quiet import quiet_import
from pipelines.training.monitor import SILENCE_SECONDS
from pipelines.training.resources import gpus_given_by_spark
from pipelines.training.run import WorkerTask
from pipelines.training.worker import run_worker

# Where the exchange of each framework is; imported only in a rank.
EXCHANGES = {
    "tensorflow": ("pipelines.engines.horovod.tensorflow", "TensorFlowExchange"),
    "torch": ("pipelines.engines.horovod.torch", "TorchExchange"),
}
ASK_SECONDS = 20.0
ASK_TIMES = 3
AGAIN_SECONDS = 0.3
CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
# With an interface given, Horovod looks no host's name up.
GLOO_INTERFACE = "HOROVOD_GLOO_IFACE"
GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"


@dataclass(frozen=True, kw_only=True)
class RankMaker:
    """What the ranks are made from; travels to the executors.

    Attributes:
        task: Of rank 0.
        store: Host and port of the driver's :class:`.rendezvous.Rendezvous`.
        token: Of the store.
    """

    task: WorkerTask
    store: tuple[str, int]
    token: str

    def start(self, ranks: Iterable[int]) -> None:
        """Has a child be a rank, and waits for its end. Runs in a Spark task.

        What goes wrong is for the monitor to hear: Spark would start a task again that fails.

        Args:
            ranks: One number.
        """
        (rank,) = ranks
        run_in_child(replace(self.task, rank=rank), self._work)

    def _work(self, task: WorkerTask) -> None:
        with ExitStack() as afterwards:
            join = partial(self._join, task, afterwards)
            run_worker(task, join, means_peer_lost=means_peer_lost)

    def _join(self, task: WorkerTask, afterwards: ExitStack) -> HorovodExchange:
        """Starts Horovod in this process, once all ranks are there; leaves it in the end."""
        training = task.run.config.training
        module, name = EXCHANGES[training.framework]
        try:
            with quiet_import():
                exchange_class = getattr(import_module(module), name)
        except ImportError as error:
            raise PipelineError(
                f"Horovod for {training.framework} cannot be imported ({error}): install the wheel"
                " on every executor, see docs/environment.md"
            ) from error
        store = Store(self.store, self.token)
        own = Place(os.uname().nodename, os.environ.get(CUDA_DEVICES, ""))
        places = meet(store, task, own, training.start_seconds)
        os.environ |= environment(places, task.rank, gpus_given_by_spark())
        # Later than any deadline of the monitor's, which knows better whose fault it is.
        wait = training.stall_seconds + SILENCE_SECONDS
        os.environ |= store.environment()
        # What the owner of the cluster has set for its network stays.
        os.environ.setdefault(GLOO_TIMEOUT, str(int(wait)))
        os.environ.setdefault(GLOO_INTERFACE, interface_of(store.own_address))
        exchange: HorovodExchange = exchange_class(training.compression)
        afterwards.callback(exchange.leave)
        return exchange


class Place(NamedTuple):
    """Where a rank is.

    Attributes:
        host: Name of the host.
        devices: The GPUs that its executor may use, as ``CUDA_VISIBLE_DEVICES`` lists them.
    """

    host: str
    devices: str


class Store:
    """A rank's end of the driver's store.

    Args:
        address: Host and port of the store.
        token: What it asks for.

    Attributes:
        own_address: Of this host, on the network that leads to the store; once it was asked.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._host, self._port = address
        self._token = token
        self.own_address = ""

    def put(self, key: str, value: str) -> None:
        """Gives a key a value."""
        self._ask("PUT", key, value)

    def get_all(self, scope: str) -> dict[str, str]:
        """The values of all keys that begin with the scope, which ends in a slash."""
        values: dict[str, str] = json.loads(self._ask("GET", scope))
        return values

    def environment(self) -> dict[str, str]:
        """Tells Horovod where the store is.

        The address is followed by ``:PORT/`` where the library builds a path, so that the token
        becomes a part of it.
        """
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self._host}:{self._port}/{self._token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
        }

    def _ask(self, method: str, key: str, body: str | None = None) -> str:
        """Asks again when the driver is too busy to answer, as Horovod does."""
        for _ in range(ASK_TIMES - 1):
            with suppress(OSError, HTTPException):
                return self._ask_once(method, key, body)
            time.sleep(AGAIN_SECONDS)
        return self._ask_once(method, key, body)

    def _ask_once(self, method: str, key: str, body: str | None) -> str:
        connection = HTTPConnection(self._host, self._port, timeout=ASK_SECONDS)
        try:
            connection.connect()
            self.own_address = connection.sock.getsockname()[0]
            connection.request(method, f"/{self._token}:0/{key}", body)
            return connection.getresponse().read().decode()
        finally:
            connection.close()


def meet(store: Store, task: WorkerTask, own: Place, seconds: float) -> list[Place]:
    """Waits until all ranks are there.

    Args:
        store: Where they meet.
        task: Of this rank.
        own: Where this rank is.
        seconds: Deadline.

    Returns:
        The place of each rank.

    Raises:
        PipelineError: Some are missing.
    """
    deadline = time.monotonic() + seconds
    keys = [f"places/{rank}" for rank in range(task.workers)]
    store.put(keys[task.rank], json.dumps(own))
    while len(there := store.get_all("places/")) < task.workers:
        if time.monotonic() > deadline:
            late = [rank for rank, key in enumerate(keys) if key not in there]
            raise PipelineError(f"ranks {late} have not come within {seconds:.0f} s")
        time.sleep(AGAIN_SECONDS)
    return [Place(*json.loads(there[key])) for key in keys]


def environment(places: Sequence[Place], rank: int, given: Sequence[str]) -> dict[str, str]:
    """What Horovod and the frameworks read of a rank's place.

    Args:
        places: Of each rank.
        rank: The rank.
        given: Addresses of the GPUs that Spark gave its task.
    """
    hosts = [place.host for place in places]
    own = hosts[rank]
    local = hosts[:rank].count(own)
    # Hosts that have as many ranks, one of which is the counterpart of this one.
    names = list(dict.fromkeys(hosts))
    counterparts = [name for name in names if hosts.count(name) > local]
    visible = [name for name in places[rank].devices.split(",") if name]
    # Executors of one host may have GPUs of their own each.
    turn = places[:rank].count(places[rank]) % max(len(visible), 1)
    gpus = given or visible[turn : turn + 1]
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(hosts)),
        "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(own)),
        "HOROVOD_CROSS_RANK": str(counterparts.index(own)),
        "HOROVOD_CROSS_SIZE": str(len(counterparts)),
        # A word of the store's keys only, which a name might not fit into.
        "HOROVOD_HOSTNAME": f"host-{names.index(own)}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "LOCAL_RANK": str(local),
        # TensorFlow would take every GPU that it sees.
        CUDA_DEVICES: ",".join(gpus),
    }


def interface_of(address: str) -> str:
    """The network interface that has an address of this host.

    Raises:
        PipelineError: None has.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    raise PipelineError(f"no network interface has the address {address}")
