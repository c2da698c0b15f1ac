"""The exchange between PyTorch processes by a process group's operations. Runs on executors."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as processes
from torch._utils import _flatten_dense_tensors

from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives
from pipelines.training.collectives.torch_shared_memory import SharedMeans, shared_memory
from pipelines.training.devices import worker_device

_Result = TypeVar("_Result")

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


class GroupCollectives(Collectives):
    """Collective operations of a group; see :class:`.base.Collectives`.

    Means travel in flat buckets. Compressed ones are the same on all workers, and no sum of many
    workers is rounded on its way:

    - Gloo: each worker sends every other one its part of the bucket in bf16. It adds what arrives
      for its own part in fp32, in the order of the ranks, and sends the mean to all in bf16. A
      number is so rounded twice, whatever the number of workers.
    - NCCL: its own sum of bf16 numbers that are divided before, as the hook of
      DistributedDataParallel makes it. It may round once for each worker.

    Workers of one host without a GPU average exact numbers in shared memory
    (:mod:`.torch_shared_memory`).

    Args:
        device: The worker's device; the joined group can send from it.
        group: None for all workers.
        compression: See ``training.compression``. Single numbers, such as losses, stay exact.
    """

    def __init__(self, device: torch.device, group: Any = None, compression: str = "none") -> None:
        self.device = device
        self.group = group
        self.rank = processes.get_rank(group)
        self.workers = processes.get_world_size(group)
        self._compression = compression
        # Gloo's bf16 mean is several operations. A thread makes one exchange after the other, so
        # that their order is the same on all workers. Each has the group's deadline.
        makes_in_thread = compression == "bf16" and device.type != "cuda"
        self._pool = ThreadPoolExecutor(1, "bf16-exchange") if makes_in_thread else None
        self._shared: SharedMeans | None = None

    def all_reduce_mean(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the mean of each tensor over the workers; fp32 on the worker's device."""
        waits = [self.begin_mean(bucket) for bucket in _buckets(tensors)]
        return [mean for wait in waits for mean in wait()]

    def begin_mean(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Begin to average the tensors, as one bucket."""
        if self._shared is not None and all(tensor.dtype == torch.float32 for tensor in tensors):
            return self._shared.begin(tensors)
        if self._compression == "none":
            return self._begin(partial(self._exact_mean, tensors))
        # The loss is one number for the user's eyes.
        is_number = [tensor.ndim == 0 for tensor in tensors]
        waits = {}
        for kind, mean in ((False, self._bf16_mean), (True, self._exact_mean)):
            group = [
                tensor for tensor, number in zip(tensors, is_number, strict=True) if number == kind
            ]
            if group:
                waits[kind] = self._begin(partial(mean, group))

        def means() -> list[torch.Tensor]:
            found = {kind: iter(wait()) for kind, wait in waits.items()}
            return [next(found[kind]) for kind in is_number]

        return means

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""
        return self.begin_gather(tensor)()

    def begin_gather(self, tensor: Any) -> Callable[[], Any]:
        """Begin :meth:`all_gather`."""
        return self._begin(partial(self._gathered, tensor))

    def reduce_scatter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :meth:`.base.Collectives.reduce_scatter`."""
        return self._begin(partial(self._scattered, tensor))()

    def _begin(self, exchange: Callable[[], Callable[[], _Result]]) -> Callable[[], _Result]:
        """Begin an exchange, after those before it; the returned function waits for its result.

        `exchange` begins it too, and returns such a function.
        """
        if self._pool is None:
            return exchange()

        def made() -> _Result:
            return exchange()()

        return self._pool.submit(made).result

    def _exact_mean(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        flat, shapes = _flatten_dense_tensors(tensors), [tensor.shape for tensor in tensors]
        work = processes.all_reduce(flat, group=self.group, async_op=True)

        def means() -> list[torch.Tensor]:
            work.wait()
            return _shaped(flat.div_(self.workers), shapes)

        return means

    def _bf16_mean(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        flat, shapes = _flatten_dense_tensors(tensors), [tensor.shape for tensor in tensors]
        if self._pool is not None:
            return lambda: _shaped(self._two_passes(flat), shapes)
        sent = flat.div_(self.workers).to(torch.bfloat16)
        work = processes.all_reduce(sent, group=self.group, async_op=True)

        def means() -> list[torch.Tensor]:
            work.wait()
            return _shaped(flat.copy_(sent), shapes)

        return means

    def _two_passes(self, flat: torch.Tensor) -> torch.Tensor:
        """Replace a vector by its mean; see the class."""
        size, part = flat.numel(), -(-flat.numel() // self.workers)
        sent = flat.new_zeros(self.workers * part, dtype=torch.bfloat16)
        sent[:size].copy_(flat)
        arrived = torch.empty_like(sent)
        processes.all_to_all_single(arrived, sent, group=self.group)
        total = arrived.view(self.workers, part).sum(dim=0, dtype=torch.float32)
        mean = total.div_(self.workers).to(torch.bfloat16)
        all_gather_single(sent, mean, group=self.group)
        return flat.copy_(sent[:size])

    def _gathered(self, tensor: Any) -> Callable[[], Any]:
        # NCCL sends only contiguous tensors in a GPU's memory.
        part = torch.as_tensor(tensor, device=self.device).contiguous()
        joined = part.new_empty(self.workers * part.shape[0], *part.shape[1:])
        work = all_gather_single(joined, part, group=self.group, async_op=True)

        def gathered() -> Any:
            work.wait()
            return joined.cpu().numpy() if isinstance(tensor, np.ndarray) else joined

        return gathered

    def _scattered(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        part = tensor.new_empty(tensor.shape[0] // self.workers, *tensor.shape[1:])
        work = reduce_scatter_single(part, tensor.contiguous(), group=self.group, async_op=True)

        def scattered() -> torch.Tensor:
            work.wait()
            return part

        return scattered


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
        super().__init__(device, compression=settings.compression)
        if device.type == "cpu" and settings.compression == "none" and workers > 1:
            self._share_memory()

    def _share_memory(self) -> None:
        """Average through shared memory if all workers are on this host; all call it at once."""
        memory = shared_memory(self.rank, self.workers, self.all_gather)
        if memory is not None:
            number = torch.zeros(1)
            wait = partial(processes.all_reduce, number, group=self.group)
            self._shared = SharedMeans(memory, self.rank, self.workers, wait)


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


def _shaped(flat: torch.Tensor, shapes: Sequence[torch.Size]) -> list[torch.Tensor]:
    """Return views of a vector as tensors of the shapes, one after the other."""
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


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
