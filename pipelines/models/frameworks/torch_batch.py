"""Texts as encoders in PyTorch take them: one sequence of tokens without padding.

A batch may join the texts of several *segments*, such as the sides of granules (fixed
micro-batches). Matrix products and norms take all tokens at once. Attention and means need
rectangles of texts x width. On a GPU that is one rectangle, or none. On a CPU each segment has its
own, so that short sides do not pay for long ones, and a cache holds more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from pipelines.models.spec import Pooling

_ATTENTION_MASK = -1e9
"""Added to the scores of padding: its probability becomes exactly zero in fp32."""
BY_SEGMENT = frozenset({"cpu"})
"""Types of devices that compute attention, means and noise of one segment after the other. On
others the time to start an operation counts, so their number must not grow with the segments."""


def by_segment(device: torch.device) -> bool:
    """Return whether a device computes one segment after the other; see :data:`BY_SEGMENT`."""
    return device.type in BY_SEGMENT


@dataclass(frozen=True, kw_only=True, eq=False)
class Padding:
    """The padding of a batch.

    Attributes:
        places: int64 [tokens], the place of each token in the rectangle of texts x width.
        sources: int64 [texts x width], the token of each place; any token for padding.
        attention_bias: fp32 [texts, 1, 1, width], added to attention's scores.
    """

    places: torch.Tensor
    sources: torch.Tensor
    attention_bias: torch.Tensor

    @classmethod
    def of(cls, is_token: np.ndarray, device: torch.device) -> Padding:
        """Return the padding of bool [texts, width], true for tokens."""
        places = np.flatnonzero(is_token)
        sources = np.zeros(is_token.size, np.int64)
        sources[places] = np.arange(len(places))
        bias = np.where(is_token, 0.0, _ATTENTION_MASK).astype(np.float32)
        return cls(
            places=to_device(places, device),
            sources=to_device(sources, device),
            attention_bias=to_device(bias[:, None, None, :], device),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """A batch of texts, as the encoder takes it.

    What only some encoders need is made at its first use.

    Attributes:
        token_ids: int64 [tokens], of all texts without padding.
        positions: int64 [tokens], of each token in its text.
        lengths: fp32 [texts], tokens of each text.
        of_texts: int32 [texts], the same in the host's memory.
        texts_of_segments: Numbers of texts, of each segment in order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor
    of_texts: np.ndarray
    texts_of_segments: tuple[int, ...]

    @classmethod
    def of(cls, token_ids: np.ndarray, lengths: np.ndarray, device: torch.device) -> Batch:
        """Return a batch of one segment; see :meth:`joined`."""
        return cls.joined([(token_ids, lengths)], device)

    @classmethod
    def joined(
        cls, segments: Sequence[tuple[np.ndarray, np.ndarray]], device: torch.device
    ) -> Batch:
        """Remove the padding of segments, on the host, and join them.

        A segment has token ids, int32 [texts, any width], padded with any valid id, and lengths,
        int32 [texts], at least 1.
        """
        of_segments = [
            ids[:, : lengths.max()][np.arange(lengths.max()) < lengths[:, None]]
            for ids, lengths in segments
        ]
        of_texts = np.concatenate([lengths for _, lengths in segments])
        firsts = np.cumsum(of_texts) - of_texts
        token_ids = np.concatenate(of_segments).astype(np.int64)
        positions = np.arange(len(token_ids)) - np.repeat(firsts, of_texts)
        return cls(
            token_ids=to_device(token_ids, device),
            positions=to_device(positions, device),
            lengths=to_device(of_texts.astype(np.float32), device),
            of_texts=of_texts,
            texts_of_segments=tuple(len(lengths) for _, lengths in segments),
        )

    @property
    def texts(self) -> int:
        """The number of texts."""
        return len(self.of_texts)

    @cached_property
    def width(self) -> int:
        """The tokens of the longest text."""
        return int(self.of_texts.max())

    @cached_property
    def firsts(self) -> torch.Tensor:
        """Where each text begins, int64 [texts]."""
        return to_device(np.cumsum(self.of_texts, dtype=np.int64) - self.of_texts, self._device)

    @cached_property
    def bounds(self) -> torch.Tensor:
        """The firsts and the end of the last text, int32 [texts + 1]."""
        bounds = np.zeros(self.texts + 1, np.int32)
        np.cumsum(self.of_texts, out=bounds[1:])
        return to_device(bounds, self._device)

    @cached_property
    def padding(self) -> Padding | None:
        """The padding in one rectangle of all texts; None if they are equally long."""
        is_token = np.arange(self.width) < self.of_texts[:, None]
        return None if is_token.all() else Padding.of(is_token, self._device)

    @cached_property
    def tokens_of_segments(self) -> list[int]:
        """Numbers of tokens, of each segment in order."""
        firsts = np.cumsum(self.texts_of_segments) - self.texts_of_segments
        return [int(tokens) for tokens in np.add.reduceat(self.of_texts, firsts)]

    @cached_property
    def segments(self) -> list[Batch]:
        """Each segment as a batch, in the same memory."""
        if len(self.texts_of_segments) == 1:
            return [self]
        tokens, texts = self.tokens_of_segments, self.texts_of_segments
        of_each = zip(
            self.token_ids.split(tokens),
            self.positions.split(tokens),
            self.lengths.split(list(texts)),
            np.split(self.of_texts, np.cumsum(texts)[:-1]),
            strict=True,
        )
        return [
            Batch(
                token_ids=ids,
                positions=positions,
                lengths=lengths,
                of_texts=of_texts,
                texts_of_segments=(len(of_texts),),
            )
            for ids, positions, lengths, of_texts in of_each
        ]

    def rectangle(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [tokens, any width] as [texts, width, any width], zero where there is padding."""
        if self.padding is not None:
            empty = rows.new_zeros(self.texts * self.width, rows.shape[1])
            rows = empty.index_copy_(0, self.padding.places, rows)
        return rows.view(self.texts, self.width, -1)

    def tokens(self, rectangle: torch.Tensor) -> torch.Tensor:
        """Return the inverse of :meth:`rectangle`, for [texts, width, ...]."""
        rows = rectangle.reshape(self.texts * self.width, -1)
        return rows if self.padding is None else rows.index_select(0, self.padding.places)

    def by_segment(
        self, compute: Callable[[torch.Tensor, Batch], torch.Tensor], rows: torch.Tensor
    ) -> torch.Tensor:
        """Compute from the rows [tokens, ...] of one segment after the other; join the results."""
        parts = zip(rows.split(self.tokens_of_segments), self.segments, strict=True)
        return torch.cat([compute(part, segment) for part, segment in parts])

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of each text's rows, [texts, any width], from [tokens, any width]."""
        if by_segment(self._device) and len(self.texts_of_segments) > 1:
            return self.by_segment(lambda part, segment: segment.sums(part), rows)
        # Padding is zero in the rectangle.
        return self.rectangle(rows).sum(1)

    @property
    def _device(self) -> torch.device:
        return self.token_ids.device


def pool(pooling: Pooling, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return one hidden state of each text, [texts, hidden], from those of its tokens."""
    return _POOLINGS[pooling](hidden_states, batch)


def _mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    return batch.sums(hidden_states) / batch.lengths[:, None]


def _weighted_mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    weighted = hidden_states * (batch.positions[:, None] + 1)
    # The sum of the places 1 to n.
    total = batch.lengths * (batch.lengths + 1) / 2
    return batch.sums(weighted) / total[:, None]


def _first(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    return hidden_states.index_select(0, batch.firsts)


def _last(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    return hidden_states.index_select(0, batch.firsts + batch.lengths.long() - 1)


_POOLINGS: Mapping[Pooling, Callable[[torch.Tensor, Batch], torch.Tensor]] = {
    "mean": _mean,
    "cls": _first,
    "lasttoken": _last,
    "weightedmean": _weighted_mean,
}


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor: on a CPU in the same memory, on a GPU without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
