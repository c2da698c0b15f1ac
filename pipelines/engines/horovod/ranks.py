"""A rank: what runs on an executor, in a process of its own.

Horovod starts once in a process, and Spark uses its Python workers again, so each rank is a
child of one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from importlib import import_module

from pyspark import TaskContext

from pipelines.engines.horovod.exchange import HorovodExchange
from pipelines.engines.processes import end_with_parent
from pipelines.errors import PipelineError
from pipelines.quiet import quiet_import
from pipelines.training.monitor import SILENCE_SECONDS
from pipelines.training.reporter import ABORTED, report_lost
from pipelines.training.run import WorkerTask
from pipelines.training.worker import run_worker

# Where the exchange of each framework is; imported only in a rank.
EXCHANGES = {
    "tensorflow": ("pipelines.engines.horovod.tensorflow", "TensorFlowExchange"),
    "torch": ("pipelines.engines.horovod.torch", "TorchExchange"),
}
ASK_SECONDS = 20.0
AGAIN_SECONDS = 0.1
CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"


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
        task = replace(self.task, rank=rank)
        # fork, since a Python worker of Spark has no main module that a new interpreter could
        # load; this one computes nothing.
        child = multiprocessing.get_context("fork").Process(target=self._work, args=(task,))
        child.start()
        # The deadlines are the monitor's: it ends the child, and the child ends with this worker.
        child.join()
        if child.exitcode not in (0, ABORTED):
            # Counts only if the child could not say itself that it is there.
            with suppress(OSError):
                report_lost(task, f"the worker's process died (exit code {child.exitcode})")

    def _work(self, task: WorkerTask) -> None:
        end_with_parent()
        with ExitStack() as afterwards:
            run_worker(task, partial(self._join, task, afterwards))

    def _join(self, task: WorkerTask, afterwards: ExitStack) -> HorovodExchange:
        """Starts Horovod in this process, once all ranks are there; leaves it in the end."""
        training = task.run.config.training
        module, name = EXCHANGES[training.framework]
        with quiet_import():
            exchange_class = getattr(import_module(module), name)
        store = Store(self.store, self.token)
        hosts = meet(store, task, training.start_seconds)
        os.environ |= environment(hosts, task.rank, gpus_given_by_spark(), os.environ)
        # Later than any deadline of the monitor's, which knows better whose fault it is.
        wait = training.stall_seconds + SILENCE_SECONDS
        os.environ |= store.environment() | {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(int(wait))}
        exchange: HorovodExchange = exchange_class(training.compression)
        afterwards.callback(exchange.leave)
        return exchange


class Store:
    """A rank's end of the driver's store.

    Args:
        address: Host and port of the store.
        token: What it asks for.
    """

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._host, self._port = address
        self._token = token
        self._own_address = ""

    def put(self, key: str, value: str) -> None:
        """Gives a key a value."""
        self._ask("PUT", key, value)

    def get(self, key: str) -> str | None:
        """The value of a key, if it has one."""
        status, value = self._ask("GET", key)
        return value if status == HTTPStatus.OK else None

    def environment(self) -> dict[str, str]:
        """Tells Horovod where the store is, and which network to use: the one that leads there.

        The address is followed by ``:PORT/`` where the library builds a path, so that the token
        becomes a part of it. With a network interface the library looks no host's name up.
        """
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self._host}:{self._port}/{self._token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
            "HOROVOD_GLOO_IFACE": interface_of(self._own_address),
        }

    def _ask(self, method: str, key: str, body: str | None = None) -> tuple[int, str]:
        connection = HTTPConnection(self._host, self._port, timeout=ASK_SECONDS)
        try:
            connection.connect()
            self._own_address = connection.sock.getsockname()[0]
            connection.request(method, f"/{self._token}:0/{key}", body)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


def meet(store: Store, task: WorkerTask, seconds: float) -> list[str]:
    """Waits until all ranks are there.

    Args:
        store: Where they meet.
        task: Of this rank.
        seconds: Deadline.

    Returns:
        The host of each rank.

    Raises:
        PipelineError: Some are missing.
    """
    deadline = time.monotonic() + seconds
    store.put(f"hosts/{task.rank}", os.uname().nodename)
    hosts = []
    for rank in range(task.workers):
        while (host := store.get(f"hosts/{rank}")) is None:
            if time.monotonic() > deadline:
                raise PipelineError(f"rank {rank} has not come within {seconds:.0f} s")
            time.sleep(AGAIN_SECONDS)
        hosts.append(host)
    return hosts


def environment(
    hosts: Sequence[str], rank: int, given: Sequence[str], known: Mapping[str, str]
) -> dict[str, str]:
    """What Horovod and the frameworks read of a rank's place.

    Args:
        hosts: Of each rank.
        rank: The rank.
        given: Addresses of the GPUs that Spark gave its task.
        known: The environment of the process.
    """
    own = hosts[rank]
    local = hosts[:rank].count(own)
    # Hosts that have as many ranks, one of which is the counterpart of this one.
    names = list(dict.fromkeys(hosts))
    counterparts = [name for name in names if hosts.count(name) > local]
    visible = [name for name in known.get(CUDA_DEVICES, "").split(",") if name]
    gpus = given or visible[local % max(len(visible), 1) :][:1]
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
    import psutil  # Comes with Horovod, which the driver may be without.

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    raise PipelineError(f"no network interface has the address {address}")


def gpus_given_by_spark() -> list[str]:
    """Addresses of the task's resource ``gpu``."""
    context = TaskContext.get()
    resource = context.resources().get("gpu") if context is not None else None
    return list(resource.addresses) if resource is not None else []
