"""The exchange between PyTorch processes by a process group's operations. Runs on executors."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as processes
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from pipelines.settings import TrainingSettings
from pipelines.training.devices import worker_device

BUCKET_BYTES = 25 * 2**20
"""Bytes of an exchange, as in DistributedDataParallel: enough for the network, and few enough to
gather one bucket in memory while the one before it travels."""

# PyTorch before 2.13 knows only the earlier names; from 2.13 on these warn.
_SINGLE = hasattr(processes, "all_gather_single")
all_gather_single = processes.all_gather_single if _SINGLE else processes.all_gather_into_tensor
reduce_scatter_single = (
    processes.reduce_scatter_single if _SINGLE else processes.reduce_scatter_tensor
)

_PEER_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection timed out",
    "No route to host",
    "remote process exited",
)
"""How the errors of Gloo (``tcp/pair.cc``) and NCCL report a lost peer."""


class GroupCollectives:
    """Collective operations of a group; see :class:`.base.Collectives`.

    The exchange averages gradients in flat buckets like DistributedDataParallel, but without it.
    That class would overlap the exchange with the last granule's backward pass. But it needs a
    ``forward`` of one module before each ``backward``, a gradient of every parameter in order, and
    dense word gradients, although a granule touches few of their rows. Two passes over the granules
    (``negatives: step``) fit none of these.

    Args:
        device: The worker's device; the joined group can send from it.
        group: None for all workers.
    """

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self.device = device
        self.group = group
        self.rank = processes.get_rank(group)
        self.workers = processes.get_world_size(group)

    def all_reduce_mean(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the mean of each tensor over the workers; fp32 on the worker's device."""
        sent = []
        for bucket in _buckets(tensors):
            flat = _flatten_dense_tensors(bucket)
            sent.append((bucket, flat, processes.all_reduce(flat, group=self.group, async_op=True)))
        means: list[torch.Tensor] = []
        for bucket, flat, work in sent:
            work.wait()
            means += _unflatten_dense_tensors(flat.div_(self.workers), bucket)
        return means

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""
        # NCCL sends only contiguous tensors in a GPU's memory.
        part = torch.as_tensor(tensor, device=self.device).contiguous()
        joined = part.new_empty(self.workers * part.shape[0], *part.shape[1:])
        all_gather_single(joined, part, group=self.group)
        return joined.cpu().numpy() if isinstance(tensor, np.ndarray) else joined

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :meth:`.base.Collectives.reduce_scatter`."""
        part = tensor.new_empty(tensor.shape[0] // self.workers, *tensor.shape[1:])
        reduce_scatter_single(part, tensor.contiguous(), group=self.group)
        return part


class ProcessGroupCollectives(GroupCollectives):
    """Joins the group of torchrun's environment variables.

    It uses NCCL if the worker has a GPU, Gloo otherwise.

    Args:
        settings: The deadlines, of the start and of a step.
        listener: Of rank 0: the socket of the workers' common store, which takes it over; None
            listens at every address of the host.
    """

    def __init__(self, settings: TrainingSettings, listener: socket.socket | None = None) -> None:
        device = worker_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = processes.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            workers,
            is_master=rank == 0,
            timeout=timedelta(seconds=settings.start_seconds),
            master_listen_fd=None if listener is None else listener.detach(),
        )
        processes.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=settings.stall_seconds),
        )
        super().__init__(device)


def means_peer_lost(error: Exception) -> bool:
    """Return whether an error is the loss of another worker, or of the connection to it.

    Gloo has no error class for that; NCCL's errors name the remote process.
    """
    if isinstance(error, processes.DistNetworkError | processes.DistStoreError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _PEER_LOST)


@contextmanager
def process_group_cleanup() -> Iterator[None]:
    """Leave a process group joined inside, if any."""
    try:
        yield
    finally:
        if processes.is_initialized():
            processes.destroy_process_group()


def exit_without_finalization(code: int = 0) -> NoReturn:
    """End the process of one worker, as a forked one ends.

    Gloo's threads outlive the process group while anything refers to it, as device meshes do, and
    release a tensor only after its waiters have gone on. If the interpreter finalizes meanwhile, it
    aborts: https://github.com/pytorch/pytorch/issues/190489.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield runs of at most ``BUCKET_BYTES``, or a single larger tensor."""
    bucket: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    yield bucket
