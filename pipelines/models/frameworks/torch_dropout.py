"""Dropout in PyTorch that follows from seeds alone, whatever is computed beside it.

Each *segment* of texts, such as a side of a granule (a fixed micro-batch), has a seed. Its noise
depends on nothing else, so a granule has the same masks on any worker, in any batch, and when
layers are recomputed. On a CPU a generator draws the mask of each segment and place. On a GPU a
hash of seed, token, place and column decides about each value: all segments of a batch take one
series of operations.

Source of the hash: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
2014 (SplitMix64), with a stream for each token; its mixing function is "Mix13" of Stafford.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipelines.models.frameworks.torch_batch import Batch, by_segment, to_device
from pipelines.models.frameworks.torch_compile import compiled, of_any_length
from pipelines.models.spec import WHOLE_NOISE, DropoutRates, EncoderSpec, NoisePlace

_LEVELS = 2**16
"""Rates are multiples of its reciprocal: sixteen random bits decide about a value."""
_VALUES = 4
"""Values that a random word of 64 bits decides about."""
_WORDS_OF_PLACE = 2**20
"""Words of a token's stream for each place of dropout; four times as many values."""
_SKIPPED_AT_ONCE = 2**20
"""Words skipped at once in a generator's stream: 8 MiB."""
_HASHED_AT_ONCE = 2**24
"""Words hashed at once for several places, unless one place needs more: 128 MiB."""

# The constants of SplitMix64, as signed numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class DrawnMask:
    """The mask of one place.

    Attributes:
        kept: [tokens, width]: true or a factor for values that are kept.
        scale: What these are multiplied by besides.
    """

    kept: torch.Tensor
    scale: float

    def drop(self, site: int, values: torch.Tensor) -> torch.Tensor:
        """Return values under the mask, in fp32; the place is the mask's own."""
        return values.float() * self.kept * self.scale


class DropoutMasks:
    """Dropout masks of one segment, by nothing but its seed and the number of the place.

    PyTorch's global generators play no part. Masks differ between CPU and GPU.
    """

    def __init__(
        self,
        rates: DropoutRates,
        seed: Sequence[int],
        device: torch.device,
        within: NoisePlace = WHOLE_NOISE,
    ) -> None:
        self.rates = rates
        self._seed = tuple(int(number) for number in seed)
        self._device = device
        self._within = within
        self._keys_on_device: torch.Tensor | None = None
        self._planned: Sequence[int] = ()
        self._hashed: dict[int, torch.Tensor] = {}

    @property
    def segments(self) -> Sequence[DropoutMasks]:
        """The masks of each segment of the batch."""
        return [self]

    def state(self, *place: int) -> int:
        """Return a seed for the generator of one place."""
        assert self._seed, "several segments have no seed in common"
        (state,) = np.random.SeedSequence([*self._seed, *place]).generate_state(1, np.uint64)
        return int(state)

    def drop(self, site: int, values: torch.Tensor) -> torch.Tensor:
        """Return values [tokens, width] under the mask of a place, in fp32."""
        drawn = self.mask_of(site, values)
        if by_segment(self._device):
            return values * drawn.kept
        result: torch.Tensor = _Dropped.apply(values, drawn.kept, drawn.scale)
        return result

    def mask_of(self, site: int, values: torch.Tensor) -> DrawnMask:
        """Return the mask of a place for values [tokens, width], for compiled code."""
        if by_segment(self._device):
            return DrawnMask(self.mask(site, values.shape), 1.0)
        scale = _LEVELS / (_LEVELS - _dropped_levels(self.rates.hidden))
        return DrawnMask(self._kept(site, *values.shape), scale)

    def plan(self, sites: Sequence[int]) -> None:
        """Name coming places of values of one width, in order; a GPU may hash for several at once.

        Each is asked for once. Without a plan each place is hashed for itself.
        """
        self._planned = sites

    def _kept(self, site: int, tokens: int, width: int) -> torch.Tensor:
        if site not in self._hashed:
            if self._keys_on_device is None or len(self._keys_on_device) != tokens:
                self._keys_on_device = to_device(self.keys(tokens), self._device)
            most = max(_HASHED_AT_ONCE * _VALUES // (tokens * width), 1)
            coming = [*self._planned]
            sites = coming[coming.index(site) :][:most] if site in coming else [site]
            dropped = _dropped_levels(self.rates.hidden)
            kept = keeps(self._keys_on_device, sites, width, dropped)
            self._hashed = dict(zip(sites, kept, strict=True))
        return self._hashed.pop(site)

    def keys(self, tokens: int) -> np.ndarray:
        """Return the beginning of each token's random stream, int64 [tokens]."""
        first = self._within.tokens
        numbers = np.arange(first, first + tokens, dtype=np.int64)
        return _mixed_keys(np.int64(np.uint64(self.state()).view(np.int64)) + numbers * _GOLDEN)

    @contextmanager
    def seeded(self, site: int, *, host: bool = False) -> Iterator[None]:
        """Seed the device's generator for a place, and restore it afterwards.

        With `host`, do the same with the CPU's generator. What a library draws depends on the
        batch, so a part of a segment has a seed of its own.
        """
        generators = [_own_generator(self._device)]
        if host and self._device.type != "cpu":
            generators.append(torch.default_generator)
        kept = [generator.get_state() for generator in generators]
        part = (self._within.texts,) if self._within.texts else ()
        for generator in generators:
            generator.manual_seed(self.state(*part, site))
        try:
            yield
        finally:
            for generator, state in zip(generators, kept, strict=True):
                generator.set_state(state)

    def mask(self, site: int, shape: Sequence[int]) -> torch.Tensor:
        """Return the fp32 factors of a mask [tokens, ...]: 0, or the reciprocal of the kept share.

        Sixteen random bits decide about a value: torch's dropout draws several times as long.
        """
        before = self._within.tokens * math.prod(shape[1:])
        return self._drawn(site, self.rates.hidden, before, shape)

    def attention_mask(self, site: int, texts: int, heads: int, width: int) -> torch.Tensor:
        """Return the same of attention's probabilities, [texts, heads, width, width]."""
        side = self._within.width or width
        before = self._within.texts * heads * side**2
        shape = (texts, heads, side, side)
        return self._drawn(site, self.rates.attention, before, shape)[..., :width, :width]

    def _drawn(self, site: int, share: float, before: int, shape: Sequence[int]) -> torch.Tensor:
        """Return the factors of a mask, of the numbers after the first ones of a place."""
        # A generator of its own for each place, so that a layer that is computed once more, or in
        # another order, has the same mask.
        generator = torch.Generator(self._device).manual_seed(self.state(site))
        skipped, first = divmod(before, _VALUES)
        while skipped:
            self._words(min(skipped, _SKIPPED_AT_ONCE), generator)
            skipped -= min(skipped, _SKIPPED_AT_ONCE)
        last = first + math.prod(shape)
        words = self._words(-(-last // _VALUES), generator)
        dropped = _dropped_levels(share)
        kept = words.view(torch.int16)[first:last].view(*shape) >= dropped - _LEVELS // 2
        return kept.to(torch.float32).mul_(_LEVELS / (_LEVELS - dropped))

    def _words(self, count: int, generator: torch.Generator) -> torch.Tensor:
        words = torch.empty(count, dtype=torch.int64, device=self._device)
        # All 64 bits are random: a word decides about four values.
        return words.random_(-(2**63), None, generator=generator)


class JoinedMasks(DropoutMasks):
    """The masks of a batch of several segments."""

    def __init__(self, segments: Sequence[DropoutMasks], tokens: Sequence[int]) -> None:
        first = segments[0]
        super().__init__(first.rates, (), first._device)
        self._segments, self._tokens = segments, tokens

    @property
    def segments(self) -> Sequence[DropoutMasks]:
        """The masks of each segment of the batch."""
        return self._segments

    def keys(self, tokens: int) -> np.ndarray:
        """See :class:`DropoutMasks`."""
        return np.concatenate([segment.keys(count) for segment, count in self._each()])

    def mask(self, site: int, shape: Sequence[int]) -> torch.Tensor:
        """See :class:`DropoutMasks`."""
        of_each = (segment.mask(site, (count, *shape[1:])) for segment, count in self._each())
        return torch.cat([*of_each])

    def _each(self) -> Iterator[tuple[DropoutMasks, int]]:
        return zip(self._segments, self._tokens, strict=True)


def dropout_masks(
    spec: EncoderSpec,
    share: float | None,
    seed: Sequence[int] | None,
    device: torch.device,
    within: NoisePlace = WHOLE_NOISE,
) -> DropoutMasks | None:
    """Return the masks of a forward pass; None without dropout.

    A share of None is the encoder's own dropout. Dropout needs a seed.
    """
    rates = spec.dropout(share)
    if rates is None:
        return None
    if seed is None:
        raise ValueError("dropout needs a seed")
    return DropoutMasks(rates, seed, device, within)


def joined_masks(masks: Sequence[DropoutMasks | None], batch: Batch) -> DropoutMasks | None:
    """Return the masks of a batch from those of its segments."""
    found = [segment for segment in masks if segment is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else JoinedMasks(found, batch.tokens_of_segments)


def dropped(
    masks: DropoutMasks | DrawnMask | None, site: int, values: torch.Tensor
) -> torch.Tensor:
    """Return values under the mask of a place; unchanged without dropout."""
    return values if masks is None else masks.drop(site, values)


def keeps(keys: torch.Tensor, sites: Sequence[int], width: int, dropped: int) -> torch.Tensor:
    """Return bool [sites, tokens, width]: whether each value of some places is kept.

    Pointwise, so the same for a token in any batch. Integers alone, so the same on any device. The
    number of operations depends on nothing.

    Args:
        keys: int64 [tokens], see :meth:`DropoutMasks.keys`.
        dropped: Dropped values in 65,536.
    """
    firsts = np.array(sites, np.int64)[:, None, None] * _WORDS_OF_PLACE
    columns = (firsts + np.arange(-(-width // _VALUES))) * np.int64(_GOLDEN)
    of_any_length(keys)
    return compiled(_keeps)(keys, to_device(columns, keys.device), width, dropped)


def _keeps(keys: torch.Tensor, columns: torch.Tensor, width: int, dropped: int) -> torch.Tensor:
    words = keys[:, None] + columns
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        words = _xor_shift(words, shift).mul_(factor)
    bits = _xor_shift(words, 31).view(torch.int16)[..., :width]
    return bits >= dropped - _LEVELS // 2


def _xor_shift(words: torch.Tensor, shift: int) -> torch.Tensor:
    # PyTorch shifts copies of the sign in, where zeros belong.
    return words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1))


def _mixed_keys(words: np.ndarray) -> np.ndarray:
    """Return SplitMix64's mixing function of int64 numbers."""
    mixed = words.view(np.uint64)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor % 2**64)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


class _Dropped(torch.autograd.Function):  # type: ignore[misc]
    """Values times a mask of one byte for each, and a scale; fp32."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale, ctx.dtype = scale, values.dtype
        return _masked(values.float(), kept, scale)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return _masked(grad_output, kept, ctx.scale).to(ctx.dtype), None, None


def _masked(values: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    # One kernel for the product of the three.
    product: torch.Tensor = torch.ops.aten.native_dropout_backward(values, kept, scale)
    return product


def _dropped_levels(share: float) -> int:
    return min(round(share * _LEVELS), _LEVELS - 1)


def _own_generator(device: torch.device) -> Any:
    """Return the generator of PyTorch's operations."""
    if device.type == "cpu":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
