"""What the PyTorch encoder is made of: a batch without padding, noise from seeds, attention.

Everything but attention works on one token at a time, so tokens stand in a matrix of their own,
one text after the other, and no matrix product sees padding. Attention needs a rectangle of texts
x width; where all texts are equally long, that is the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

LONGEST_EXPLICIT = 128
"""Texts of more tokens are attended by torch's fused operation; see :func:`attention_form`."""

_HIDDEN_FROM_SOFTMAX = -1e9
"""Added to the score of padding, whose probability then is exactly zero."""

Attention = Callable[[torch.Tensor, "Batch", int, "torch.Tensor | None"], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Where the padding of a batch is.

    Attributes:
        places: int64 [tokens], where each token stands in the rectangle of texts x width.
        sources: int64 [texts x width], the token of each place, and any for padding.
        hidden_keys: fp32 [texts, 1, 1, width], added to attention's scores.
    """

    places: torch.Tensor
    sources: torch.Tensor
    hidden_keys: torch.Tensor

    @classmethod
    def of(cls, there: np.ndarray, device: torch.device) -> Padding:
        """From bool [texts, width], true for tokens."""
        places = np.flatnonzero(there)
        sources = np.zeros(there.size, np.int64)
        sources[places] = np.arange(len(places))
        hidden = np.where(there, 0.0, _HIDDEN_FROM_SOFTMAX).astype(np.float32)
        return cls(
            places=to_device(places, device),
            sources=to_device(sources, device),
            hidden_keys=to_device(hidden[:, None, None, :], device),
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Texts as the encoder takes them.

    Attributes:
        texts: How many.
        width: Tokens of the longest.
        token_ids: int64 [tokens], of all texts without padding.
        positions: int64 [tokens], of each token in its text.
        lengths: fp32 [texts], tokens of each.
        firsts: int64 [texts], where each text begins.
        padding: None if all texts are equally long.
    """

    texts: int
    width: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor
    firsts: torch.Tensor
    padding: Padding | None

    @classmethod
    def of(cls, token_ids: np.ndarray, lengths: np.ndarray, device: torch.device) -> Batch:
        """Takes the padding away, on the host.

        Args:
            token_ids: int32 [texts, any width], padded with any valid id.
            lengths: int32 [texts], tokens of each text, at least 1.
            device: Where the encoder's weights are.
        """
        texts, width = len(lengths), int(lengths.max())
        there = np.arange(width) < lengths[:, None]
        return cls(
            texts=texts,
            width=width,
            token_ids=to_device(token_ids[:, :width][there].astype(np.int64), device),
            positions=to_device(np.nonzero(there)[1], device),
            lengths=to_device(lengths.astype(np.float32), device),
            firsts=to_device(np.cumsum(lengths, dtype=np.int64) - lengths, device),
            padding=None if there.all() else Padding.of(there, device),
        )

    def rectangle(self, rows: torch.Tensor) -> torch.Tensor:
        """[tokens, any width] as [texts, width, any width], zero where there is padding."""
        if self.padding is not None:
            empty = rows.new_zeros(self.texts * self.width, rows.shape[1])
            rows = empty.index_copy_(0, self.padding.places, rows)
        return rows.view(self.texts, self.width, -1)

    def tokens(self, rectangle: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`rectangle`, for [texts, width, ...]."""
        rows = rectangle.reshape(self.texts * self.width, -1)
        return rows if self.padding is None else rows.index_select(0, self.padding.places)


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array as a tensor, which on a CPU shares its memory; a GPU is not waited for."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class Noise:
    """Masks of dropout, which follow from the seed and the number of the place alone.

    The process's own generators have no part in it. The masks of a CPU and of a GPU differ.

    Args:
        share: Share of the values that is dropped, in steps of 1/65536.
        seed: Two numbers.
        device: Where the masks are wanted.
    """

    def __init__(self, share: float, seed: Sequence[int], device: torch.device) -> None:
        dropped = min(round(share * 2**16), 2**16 - 1)
        self._least_kept = dropped - 2**15
        self._scale = 2**16 / (2**16 - dropped)
        self._seed = tuple(int(number) for number in seed)
        self._device = device

    def mask(self, place: int, shape: Sequence[int]) -> torch.Tensor:
        """fp32: what values are multiplied by, 0 or the reciprocal of the share that is kept.

        Sixteen random bits decide about a value: torch's own dropout draws several times as long.

        Args:
            place: Number of the place in the encoder.
            shape: Of the values.
        """
        (state,) = np.random.SeedSequence([*self._seed, place]).generate_state(1, np.uint64)
        generator = torch.Generator(self._device).manual_seed(int(state))
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=self._device)
        words.random_(-(2**63), None, generator=generator)
        kept = words.view(torch.int16)[:count].view(*shape) >= self._least_kept
        return kept.to(torch.float32).mul_(self._scale)


def attention_form(width: int, device: torch.device, *, noisy: bool) -> Attention:
    """The fastest form of attention that may be used.

    On a CPU thread short texts are attended fastest by batched matrix products. Milliseconds
    forward and back, of 1,536 tokens and 12 heads of 32, explicit and fused: 9 and 13 at 24
    tokens a text, 15 and 17 at 64, 26 and 27 at 128, 45 and 42 at 256, in fp32; 9 and 25, 15 and
    48, 26 and 92 at 24, 64 and 128 in bf16, on a CPU without bf16 units. On one with them the
    fused operation was the slow choice for 24 tokens too. It never holds the scores of all heads,
    which is what counts for long texts, and it is the fast one on a GPU. It draws the noise of
    dropout from the process's generator, so it cannot be used with dropout.

    Args:
        width: Tokens of the longest text.
        device: Where it is computed.
        noisy: Whether probabilities are dropped.
    """
    explicit = noisy or (device.type == "cpu" and width <= LONGEST_EXPLICIT)
    return _explicit_attention if explicit else _fused_attention


def _fused_attention(
    joined: torch.Tensor, batch: Batch, heads: int, mask: torch.Tensor | None
) -> torch.Tensor:
    """See :class:`_ExplicitAttention`; ``mask`` is None."""
    assert mask is None, "the fused operation draws noise of its own"
    split = batch.rectangle(joined).view(batch.texts, batch.width, 3, heads, -1)
    query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
    hidden = None if batch.padding is None else batch.padding.hidden_keys.to(joined.dtype)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden, scale=1.0)
    return batch.tokens(mixed.transpose(1, 2))


def _explicit_attention(
    joined: torch.Tensor, batch: Batch, heads: int, mask: torch.Tensor | None
) -> torch.Tensor:
    mixed: torch.Tensor = _ExplicitAttention.apply(joined, batch, heads, mask)
    return mixed


class _ExplicitAttention(torch.autograd.Function):  # type: ignore[misc]
    """Attention by batched matrix products, with its gradient written out.

    Derived gradients would copy queries, keys and values once more. All of it is fp32, whatever
    comes in: a CPU takes several times as long in bf16 to hide padding and for softmax's gradient.
    """

    @staticmethod
    def forward(
        context: Any,
        joined: torch.Tensor,
        batch: Batch,
        heads: int,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Mixes the values.

        Args:
            context: Keeps what the gradient needs.
            joined: [tokens, 3 x hidden]: queries, scaled already, then keys, then values.
            batch: Where the texts are.
            heads: Attention heads.
            mask: fp32 [texts, heads, width, width] that probabilities are multiplied by.

        Returns:
            [tokens, hidden], of the type of ``joined``.
        """
        texts, width, size = batch.texts, batch.width, joined.shape[1] // (3 * heads)
        # What stands in the padding is hidden below, so it need not be zero.
        padding = batch.padding
        rows = joined if padding is None else joined.index_select(0, padding.sources)
        split = torch.empty(3, texts, heads, width, size, device=joined.device)
        split.copy_(rows.view(texts, width, 3, heads, size).permute(2, 0, 3, 1, 4))
        query, key, value = split.view(3, texts * heads, width, size)
        scores = torch.bmm(query, key.transpose(1, 2))
        if padding is not None:
            scores.view(texts, heads, width, width).add_(padding.hidden_keys)
        shares = torch.softmax(scores, -1)
        flat = None if mask is None else mask.view_as(shares)
        mixed = torch.bmm(shares if flat is None else shares * flat, value)
        context.save_for_backward(split, shares, flat)
        context.batch = batch
        result = joined.new_empty(texts, width, heads, size)
        result.copy_(mixed.view(texts, heads, width, size).transpose(1, 2))
        return batch.tokens(result)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of ``joined``, from that of the result."""
        split, shares, mask = context.saved_tensors
        batch: Batch = context.batch
        _, texts, heads, width, size = split.shape
        query, key, value = split.view(3, texts * heads, width, size)
        into_mixed = torch.empty(texts, heads, width, size, device=split.device)
        into_mixed.copy_(batch.rectangle(upstream).view(texts, width, heads, size).transpose(1, 2))
        into_mixed = into_mixed.view_as(query)

        into_split = torch.empty_like(split)
        into_query, into_key, into_value = into_split.view(3, texts * heads, width, size)
        used = shares if mask is None else shares * mask
        torch.bmm(used.transpose(1, 2), into_mixed, out=into_value)
        into_shares = torch.bmm(into_mixed, value.transpose(1, 2))
        if mask is not None:
            into_shares *= mask
        # The gradient of a softmax, in one pass; what autograd itself calls.
        into_scores = torch.ops.aten._softmax_backward_data(into_shares, shares, -1, shares.dtype)
        torch.bmm(into_scores, key, out=into_query)
        torch.bmm(into_scores.transpose(1, 2), query, out=into_key)
        into_joined = upstream.new_empty(texts, width, 3, heads, size)
        into_joined.copy_(into_split.permute(1, 3, 0, 2, 4))
        return batch.tokens(into_joined), None, None, None
