"""Dropout whose masks follow from seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


class DropoutMasks:
    """Masks of dropout, which follow from the seed and the number of the place alone.

    The process's own generators have no part in it, so a granule has the same masks on whatever
    worker it is computed, and when its layers are computed once more. The masks of a CPU and of a
    GPU differ.

    Attributes:
        share: Share of the values that is dropped.

    Args:
        share: The same, in steps of 1/65536.
        seed: Two numbers.
        device: Where the masks are wanted.
    """

    def __init__(self, share: float, seed: Sequence[int], device: torch.device) -> None:
        dropped = min(round(share * 2**16), 2**16 - 1)
        self.share = share
        self._least_kept = dropped - 2**15
        self._scale = 2**16 / (2**16 - dropped)
        self._seed = tuple(int(number) for number in seed)
        self._device = device

    def state(self, site: int) -> int:
        """A seed for the generator of one place."""
        (state,) = np.random.SeedSequence([*self._seed, site]).generate_state(1, np.uint64)
        return int(state)

    def mask(self, site: int, shape: Sequence[int]) -> torch.Tensor:
        """fp32: what values are multiplied by, 0 or the reciprocal of the share that is kept.

        Sixteen random bits decide about a value: torch's own dropout draws several times as long.

        Args:
            site: Number of the place in the encoder.
            shape: Of the values.
        """
        # A generator of its own for each place, so that a layer that is computed once more, or in
        # another order, has the same mask.
        generator = torch.Generator(self._device).manual_seed(self.state(site))
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=self._device)
        words.random_(-(2**63), None, generator=generator)
        kept = words.view(torch.int16)[:count].view(*shape) >= self._least_kept
        return kept.to(torch.float32).mul_(self._scale)


def dropped(masks: DropoutMasks | None, site: int, values: torch.Tensor) -> torch.Tensor:
    """Values under the mask of a place of dropout; as they are without dropout."""
    return values if masks is None else values * masks.mask(site, values.shape)
