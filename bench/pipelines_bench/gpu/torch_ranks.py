"""A worker of :mod:`.ranks`: ``python -m``, its group, its stepper and a folder; task on input."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as processes

from pipelines.engines.barrier_engine import start_worker
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.interfaces import prefer_interface_to
from pipelines.training.collectives.process_group import (
    GroupCollectives,
    exit_without_finalization,
    means_peer_lost,
    process_group_cleanup,
)
from pipelines.training.devices import CUDA_DEVICES, worker_device
from pipelines.training.loop import run_worker

START_SECONDS = 60


def main() -> None:
    """Trains, and ends with what became of it."""
    group, stepper, folder = sys.argv[1:]
    task: WorkerTask = pickle.load(sys.stdin.buffer)
    exit_without_finalization(0 if _WAYS[group](task, stepper, Path(folder)) else 1)


def _of_task(task: WorkerTask, stepper: str, folder: Path) -> bool:
    """As in a task of Spark, whose exchange of messages has one to tell here."""
    visible = os.environ.get(CUDA_DEVICES, "").split(",")
    start_worker(stepper, task, [name for name in visible if name], lambda message: [message])
    return True


def _in_group(task: WorkerTask, stepper: str, folder: Path) -> bool:
    """In a group whose members share a device."""
    # NCCL refuses two ranks on one GPU of one host. With hosts' names of their own they are taken
    # for ranks of two hosts, and exchange by sockets.
    os.environ |= {"NCCL_HOSTID": f"host-{task.rank}", "NCCL_SOCKET_IFNAME": "lo"}
    with process_group_cleanup():
        return run_worker(
            task, partial(_join, task, folder), stepper=stepper, means_peer_lost=means_peer_lost
        )


def _join(task: WorkerTask, folder: Path) -> GroupCollectives:
    device = worker_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    prefer_interface_to(task.monitor)
    # What a library asks of a rank's place on its host.
    os.environ |= {"RANK": str(task.rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(task.workers)}
    processes.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder.absolute() / 'store'}",
        rank=task.rank,
        world_size=task.workers,
        timeout=timedelta(seconds=START_SECONDS),
    )
    return GroupCollectives(device)


_WAYS: dict[str, Callable[[WorkerTask, str, Path], bool]] = {
    "task": _of_task,
    "group": _in_group,
}

if __name__ == "__main__":
    main()
