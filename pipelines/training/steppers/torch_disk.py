"""Tensors in a file of this machine, for what is needed once in a step. Runs on an executor."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable

import torch

from pipelines.errors import InputError

_ALIGNMENT = 64
_BYTES = 4


class DiskTensors:
    """fp32 tensors that lie one after the other in a file, which is mapped into memory.

    The file has no name from the beginning, so that it goes with the process, however that ends. It
    is in the folder that ``tempfile`` takes: that of ``TMPDIR``, or ``/tmp``.

    Args:
        sizes: Numbers of each tensor that :meth:`zeros` will be asked for, in any order.

    Raises:
        InputError: The disk has no room for it.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        length = sum(map(_room, sizes))
        self._taken = 0
        with tempfile.TemporaryFile() as file:
            try:
                # A file with holes would end the process where the disk is full.
                os.posix_fallocate(file.fileno(), 0, max(length, 1))
            except OSError as error:
                raise InputError(
                    "training.offload",
                    f"{tempfile.gettempdir()} has no room for {length / 1e9:.1f} GB of moments"
                    f" ({error.strerror})",
                    "set TMPDIR of the executors to a larger disk, or take more workers",
                ) from error
            self._mapped = mmap.mmap(file.fileno(), max(length, 1))

    def zeros(self, size: int) -> torch.Tensor:
        """A flat tensor of its own place in the file."""
        if not size:
            return torch.zeros(0)
        begin, self._taken = self._taken, self._taken + _room(size)
        return torch.frombuffer(self._mapped, dtype=torch.float32, count=size, offset=begin)

    def let_go(self) -> None:
        """Takes what has been touched out of this process's memory; the system writes it out."""
        self._mapped.madvise(mmap.MADV_DONTNEED)


def _room(size: int) -> int:
    """Bytes of a tensor's place."""
    return -(-size * _BYTES // _ALIGNMENT) * _ALIGNMENT
