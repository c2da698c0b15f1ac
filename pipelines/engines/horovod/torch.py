"""Collectives for PyTorch by Horovod. Runs in ranks."""

from __future__ import annotations

from collections.abc import Sequence
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

    def all_gather(self, tensor: Any) -> Any:
        """Return the workers' tensors joined along the first axis, in the order of the ranks."""
        local = torch.as_tensor(tensor, device=self._device).detach().contiguous()
        joined = hvd.allgather(local, name="gather")
        return joined.cpu().numpy() if isinstance(tensor, np.ndarray) else joined

    def _mean(
        self, name: str, tensors: Sequence[torch.Tensor], compression: Any
    ) -> list[torch.Tensor]:
        # Divided before the sum, which could exceed fp16's range.
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(self.workers)
        flat, kind = compression.compress(flat)
        hvd.allreduce_(flat, op=hvd.Sum, name=name)
        pieces = compression.decompress(flat, kind).split([tensor.numel() for tensor in tensors])
        return [piece.view_as(tensor) for piece, tensor in zip(pieces, tensors, strict=True)]
