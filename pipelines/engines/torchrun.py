"""torchrun in a process of a Spark task, without new interpreters. Runs on executors.

The store at which torchrun's agents and their workers meet. Runs on executors.

The library would open it at every address of the first worker's host, at a port that was free a
moment before, and have the others look for the name by which Spark knows the executor. Here it
listens at the one address by which that host reaches the driver, from before the others hear of it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
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
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import config_from_args, parse_args

from pipelines.engines.spark_engine import end_with_parent
from pipelines.runs.run import WorkerTask
from pipelines.spark.errors import spark_cause
from pipelines.training.collectives.interfaces import own_address, prefer_interface_to
from pipelines.training.collectives.process_group import (
    ProcessGroupCollectives,
    means_peer_lost,
    process_group_cleanup,
)
from pipelines.training.control.reporter import ABORTED, report_lost
from pipelines.training.devices import CUDA_DEVICES
from pipelines.training.loop import run_worker
from pipelines.variables import variable_set

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


def run_torchrun(
    arguments: Sequence[str], stepper: str, listener: socket.socket | None, task: WorkerTask
) -> None:
    """Runs a worker under torchrun's agent, until both have ended.

    The worker is forked, where torchrun starts an interpreter that imports PyTorch once more.

    Args:
        arguments: Of torchrun, but for the script.
        stepper: A name of ``pipelines.catalog.STEPPERS``.
        listener: Where the store of all agents is to listen, on the host of the first worker.
        task: Of the worker.
    """
    # The library looks for GPUs while it is configured. It asks CUDA, unless it is told to ask
    # NVIDIA's management library, which then finds that none is visible. After CUDA was asked no
    # process that is forked from this one could use a GPU.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    with variable_set(CUDA_DEVICES, ""):
        config, *_ = config_from_args(parse_args([*arguments, "no script"]))
    config.start_method = "fork"
    meet_at(listener, config)
    try:
        elastic_launch(config, _run_worker)(stepper, task)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode == ABORTED:
            return  # By the driver, which knows why.
        # Counts only if the worker did not report its own error.
        with suppress(OSError):
            report_lost(task, _cause(failure))
    except Exception as error:
        # The agent's own: a port that is taken, agents that did not find one another in time.
        with suppress(OSError):
            report_lost(task, spark_cause(error))
        raise


def _cause(failure: ProcessFailure) -> str:
    """Why a worker has ended, in a line."""
    told: Any = failure.message
    if isinstance(told, dict):
        return str(told["message"])
    return f"the worker's process died (exit code {failure.exitcode})"


def _run_worker(stepper: str, task: WorkerTask) -> None:
    """The worker, from its first to its last moment; ends with the agent."""
    end_with_parent()
    # The agent's handlers, which a fork inherits, raise errors of the worker's own.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    with process_group_cleanup():
        join = partial(_join_group, task)
        run_worker(task, join, stepper=stepper, means_peer_lost=means_peer_lost)


def _join_group(task: WorkerTask) -> ProcessGroupCollectives:
    prefer_interface_to(task.monitor)
    return ProcessGroupCollectives(task.run.config.training)
