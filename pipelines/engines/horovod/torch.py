"""Collectives for PyTorch by Horovod. Runs in ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from pipelines.engines.horovod.ranks import HorovodCollectives
from pipelines.training.devices import worker_device


class TorchCollectives(HorovodCollectives):
    """See :class:`.ranks.HorovodCollectives`; fp32, on any device."""

    def __init__(self, compression: str) -> None:
        self._device = worker_device()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        super().__init__(hvd, compression)
        self._under_way: set[int] = set()

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""
        local = torch.as_tensor(tensor, device=self._device).detach().contiguous()
        joined = hvd.allgather(local, name="gather")
        return joined.cpu().numpy() if isinstance(tensor, np.ndarray) else joined

    def begin_mean(self, tensors: Sequence[torch.Tensor]) -> Callable[[], list[torch.Tensor]]:
        """Begin to average the tensors; see :class:`pipelines.training.collectives.base`."""
        # Exchanges under way at once have different names. The same ones return in each step, since
        # the library remembers names.
        number = next(free for free in count() if free not in self._under_way)
        self._under_way.add(number)
        waits = [
            (places, self._begin(f"{name}-{number}", [tensors[i] for i in places], compression))
            for name, (compression, places) in self._formats(tensors).items()
        ]

        def means() -> list[torch.Tensor]:
            found: dict[int, torch.Tensor] = {}
            for places, wait in waits:
                found |= zip(places, wait(), strict=True)
            self._under_way.discard(number)
            return [found[place] for place in range(len(found))]

        return means

    def _mean(
        self, name: str, tensors: Sequence[torch.Tensor], compression: Any
    ) -> list[torch.Tensor]:
        return self._begin(name, tensors, compression)()

    def _begin(
        self, name: str, tensors: Sequence[torch.Tensor], compression: Any
    ) -> Callable[[], list[torch.Tensor]]:
        # Divided before the sum, which could exceed fp16's range.
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self.workers)
        flat, kind = compression.compress(flat)
        handle = hvd.allreduce_async_(flat, op=hvd.Sum, name=name)
        shapes = [tensor.shape for tensor in tensors]

        def means() -> list[torch.Tensor]:
            whole = compression.decompress(hvd.synchronize(handle), kind)
            pieces = whole.split([shape.numel() for shape in shapes])
            return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]

        return means
