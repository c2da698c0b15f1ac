"""Dropout whose masks follow from seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from pipelines.models.spec import DropoutRates, EncoderSpec


class DropoutMasks:
    """Masks of dropout, which follow from the seed and the number of the place alone.

    What the process's own generators have drawn has no part in it, so a granule has the same masks
    on whatever worker it is computed, and when its layers are computed once more. The masks of a
    CPU and of a GPU differ, and those of GPUs of different kinds may.

    Attributes:
        rates: Shares of the values that are dropped.

    Args:
        rates: The same; in steps of 1/65536 where masks are drawn before they are used.
        seed: Two numbers.
        device: Where the masks are wanted.
    """

    def __init__(self, rates: DropoutRates, seed: Sequence[int], device: torch.device) -> None:
        self.rates = rates
        self._seed = tuple(int(number) for number in seed)
        self._device = device

    def state(self, site: int) -> int:
        """A seed for the generator of one place."""
        (state,) = np.random.SeedSequence([*self._seed, site]).generate_state(1, np.uint64)
        return int(state)

    def drop(self, site: int, values: torch.Tensor) -> torch.Tensor:
        """Values under the mask of a place.

        On a GPU PyTorch's own kernel draws the mask, multiplies, and keeps a byte for each value.
        Which value gets which number depends on their type there, so all are made fp32 before.
        """
        if self._device.type == "cpu":
            return values * self.mask(site, values.shape)
        with self.seeded(site):
            return functional.dropout(values.float(), self.rates.hidden)

    @contextmanager
    def seeded(self, site: int, *, host: bool = False) -> Iterator[None]:
        """Has the device's own generator draw what a place is to have, and puts it back.

        Args:
            site: Number of the place in the encoder.
            host: Does the same with the generator of the CPU, which has a part in it.
        """
        generators = [_own_generator(self._device)]
        if host and self._device.type != "cpu":
            generators.append(torch.default_generator)
        kept = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(self.state(site))
        try:
            yield
        finally:
            for generator, state in zip(generators, kept, strict=True):
                generator.set_state(state)

    def mask(self, site: int, shape: Sequence[int], *, attention: bool = False) -> torch.Tensor:
        """fp32: what values are multiplied by, 0 or the reciprocal of the share that is kept.

        Sixteen random bits decide about a value: torch's own dropout draws several times as long.

        Args:
            site: Number of the place in the encoder.
            shape: Of the values.
            attention: Whether they are attention's probabilities.
        """
        share = self.rates.attention if attention else self.rates.hidden
        dropped = min(round(share * 2**16), 2**16 - 1)
        # A generator of its own for each place, so that a layer that is computed once more, or in
        # another order, has the same mask.
        generator = torch.Generator(self._device).manual_seed(self.state(site))
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=self._device)
        words.random_(-(2**63), None, generator=generator)
        kept = words.view(torch.int16)[:count].view(*shape) >= dropped - 2**15
        return kept.to(torch.float32).mul_(2**16 / (2**16 - dropped))


def dropout_masks(
    spec: EncoderSpec, share: float | None, seed: Sequence[int] | None, device: torch.device
) -> DropoutMasks | None:
    """The masks of a forward pass; None without dropout.

    Args:
        spec: Of the encoder.
        share: What is dropped; None: what the encoder was made to be trained with.
        seed: Two numbers; needed with dropout.
        device: Where the masks are wanted.
    """
    rates = spec.dropout(share)
    if rates is None:
        return None
    if seed is None:
        raise ValueError("dropout needs a seed")
    return DropoutMasks(rates, seed, device)


def dropped(masks: DropoutMasks | None, site: int, values: torch.Tensor) -> torch.Tensor:
    """Values under the mask of a place of dropout; as they are without dropout."""
    return values if masks is None else masks.drop(site, values)


def _own_generator(device: torch.device) -> Any:
    """The one that PyTorch's operations draw from."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
