"""The store at which torchrun's agents and their workers meet. Runs on executors.

The library would open it at every address of the first worker's host, at a port that was free a
moment before, and have the others look for the name by which Spark knows the executor. Here it
listens at the one address by which that host reaches the driver, from before the others hear of it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import (
    StaticTCPRendezvous,
    create_rdzv_handler,
)
from torch.distributed.launcher.api import LaunchConfig

from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.interfaces import own_address

BACKEND = "one-address"
_LISTENER = "listener"


def open_listener(task: WorkerTask) -> socket.socket | None:
    """Listens for the store, on the host of the first worker; None on the others.

    Raises:
        OSError: There is no way to the driver.
    """
    if task.rank != 0:
        return None
    address = own_address(task.monitor)
    return socket.create_server(
        (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    )


def announce(listener: socket.socket | None, gather: Callable[[str], list[str]]) -> None:
    """Tells all tasks of the barrier where the store is, by the variables of torchrun's.

    Args:
        gather: Spark's exchange of a message with the other tasks, in the order of the ranks.
    """
    first, *_ = gather(json.dumps(listener.getsockname()[:2] if listener else None))
    host, port = json.loads(first)
    os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def meet_at(listener: socket.socket | None, config: LaunchConfig) -> None:
    """Has torchrun's agent open its store at a listener, or look for the one that is open.

    Args:
        listener: Is the store's from then on.
        config: Of torchrun, as its arguments for a static rendezvous make it.
    """
    config.rdzv_backend = BACKEND
    config.rdzv_configs[_LISTENER] = listener


class _RendezvousAtOneAddress(StaticTCPRendezvous):  # type: ignore[misc] # the library has no types
    """torchrun's static rendezvous.

    Args:
        plain: As the library makes it.
        listener: Of the store, on the host of the first worker.
    """

    _store: TCPStore | None

    def __init__(self, plain: StaticTCPRendezvous, listener: socket.socket | None) -> None:
        super().__init__(
            plain.master_addr,
            plain.master_port,
            plain.rank,
            plain.world_size,
            plain.run_id,
            int(plain.timeout.total_seconds()),
        )
        self._listener = listener

    def get_backend(self) -> str:
        """Its name in the library's registry."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Opens the store or finds it, and waits for the others."""
        if self._store is None and self._listener is not None:
            self._store = TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                is_master=True,
                timeout=self.timeout,
                master_listen_fd=self._listener.detach(),
            )
        return super().next_rendezvous()


def _make_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    plain = create_rdzv_handler(parameters)
    return _RendezvousAtOneAddress(plain, parameters.config[_LISTENER])


rendezvous_handler_registry.register(BACKEND, _make_rendezvous)
