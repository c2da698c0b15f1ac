"""Means of the workers of one host, through memory that they share. Runs on executors.

Over the loopback interface, the kernel copies each byte twice, and its protocol takes a processor's
time for each packet. Here each worker copies its numbers to an area of its own. It averages its
part of all areas, and takes the whole mean. The workers wait for one another by an operation of
their group, which has a deadline and reports a lost worker.

The memory has no name: it is gone with the last process that holds it, however that one ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from pipelines.training.collectives.interfaces import SOCKETS_ONLY

AREA_BYTES = 64 * 2**20
"""Of each worker, and of the mean; larger exchanges take several turns. The system provides only
the used part."""
_BLOCK = 1 << 18
"""Numbers that are added and divided while they are in the processor's cache."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")

Gather = Callable[[np.ndarray], np.ndarray]
"""Joins the workers' arrays along the first axis."""


class SharedMeans:
    """Averages tensors of the workers of one host.

    Args:
        memory: One area of ``AREA_BYTES`` per worker, and one for the means.
        wait: Returns when all workers have called it.
    """

    def __init__(
        self, memory: mmap.mmap, rank: int, workers: int, wait: Callable[[], object]
    ) -> None:
        numbers = torch.frombuffer(memory, dtype=torch.float32)
        *self._areas, self._mean = numbers.chunk(workers + 1)
        self._rank = rank
        self._wait = wait
        self._begun: list[torch.Tensor] = []

    def begin(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Return a function that waits for the means of these tensors, and of all begun before.

        The means replace the tensors, of fp32 numbers, except single ones.
        """
        replaced = [
            tensor.detach().contiguous() if tensor.ndim else tensor.detach().clone()
            for tensor in tensors
        ]
        self._begun += replaced

        def means() -> list[torch.Tensor]:
            # All workers come here after the same beginnings.
            begun, self._begun = self._begun, []
            self._average([tensor.view(-1) for tensor in begun])
            return replaced

        return means

    def _average(self, vectors: Sequence[torch.Tensor]) -> None:
        """Replace vectors by their means, as many in a turn as an area holds."""
        most = len(self._mean)
        pieces = [piece for vector in vectors for piece in vector.split(most)]
        turn: list[torch.Tensor] = []
        for piece in pieces:
            if turn and sum(map(len, turn)) + len(piece) > most:
                self._take_turn(turn)
                turn = []
            turn.append(piece)
        if turn:
            self._take_turn(turn)

    def _take_turn(self, pieces: Sequence[torch.Tensor]) -> None:
        sizes = [len(piece) for piece in pieces]
        total, workers = sum(sizes), len(self._areas)
        # Nobody reads this area any more: all have their means of the turn before, or are here.
        for place, piece in zip(self._areas[self._rank][:total].split(sizes), pieces, strict=True):
            place.copy_(piece)
        self._wait()
        first, last = (total * rank // workers for rank in (self._rank, self._rank + 1))
        for start in range(first, last, _BLOCK):
            end = min(start + _BLOCK, last)
            block = self._mean[start:end]
            torch.add(self._areas[0][start:end], self._areas[1][start:end], out=block)
            for area in self._areas[2:]:
                block.add_(area[start:end])
            block.div_(workers)
        self._wait()
        for place, piece in zip(self._mean[:total].split(sizes), pieces, strict=True):
            piece.copy_(place)


def shared_memory(rank: int, workers: int, gather: Gather) -> mmap.mmap | None:
    """Return memory of all workers of one host; None if some are on another one.

    All workers call it at once.
    """
    # Whoever sets the variable sets it for all workers.
    if SOCKETS_ONLY in os.environ or not _all_alike(gather(_own_place())):
        return None
    size = AREA_BYTES * (workers + 1)
    token = secrets.randbits(62)
    memory, file = _made(size, token) if rank == 0 else (None, -1)
    try:
        # The file lives as long as rank 0 holds it open.
        ((process, number, expected), *_) = gather(np.array([[os.getpid(), file, token]])).tolist()
        if rank != 0:
            memory = _opened(process, number, size, expected)
        has_memory = gather(np.array([[memory is not None]], np.int64))
    finally:
        if file >= 0:
            os.close(file)
    return memory if has_memory.all() else None


def _own_place() -> np.ndarray:
    """Return numbers that name the running system, the namespace of processes, and the user."""
    try:
        boot = int(_BOOT.read_text().replace("-", "")[:15], 16)
        return np.array([[boot, _PROCESSES.stat().st_ino, os.getuid()]], np.int64)
    except (OSError, ValueError):
        # No other worker has this process's number here.
        return np.array([[-1, os.getpid(), secrets.randbits(62)]], np.int64)


def _all_alike(places: np.ndarray) -> bool:
    return bool((places == places[0]).all())


def _made(size: int, token: int) -> tuple[mmap.mmap | None, int]:
    """Return new memory with a token at its start, and its file; None and -1 without any."""
    try:
        file = os.memfd_create("gradients")
    except OSError:
        return None, -1
    try:
        os.ftruncate(file, size)
        memory = mmap.mmap(file, size)
    except OSError:
        return None, file
    memory[:8] = token.to_bytes(8, "little")
    return memory, file


def _opened(process: int, number: int, size: int, token: int) -> mmap.mmap | None:
    """Return rank 0's memory; None if it cannot be opened here."""
    if number < 0:
        return None
    with suppress(OSError, ValueError):
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
        try:
            memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        if memory[:8] == token.to_bytes(8, "little"):
            return memory
    return None
