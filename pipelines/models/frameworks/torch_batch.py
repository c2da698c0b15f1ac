"""A batch of texts on the device, without padding.

Most of an encoder works on one token at a time, so tokens stand in a matrix of their own, one text
after the other, and no matrix product sees padding. Attention and means need a rectangle of texts
x width; where all texts are equally long, that is the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from pipelines.models.spec import Pooling

_ATTENTION_MASK = -1e9
"""Added to the score of padding, whose probability then is exactly zero in fp32."""


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Where the padding of a batch is.

    Attributes:
        places: int64 [tokens], where each token stands in the rectangle of texts x width.
        sources: int64 [texts x width], the token of each place, and any for padding.
        attention_bias: fp32 [texts, 1, 1, width], added to attention's scores.
    """

    places: torch.Tensor
    sources: torch.Tensor
    attention_bias: torch.Tensor

    @classmethod
    def of(cls, is_token: np.ndarray, device: torch.device) -> Padding:
        """From bool [texts, width], true for tokens."""
        places = np.flatnonzero(is_token)
        sources = np.zeros(is_token.size, np.int64)
        sources[places] = np.arange(len(places))
        bias = np.where(is_token, 0.0, _ATTENTION_MASK).astype(np.float32)
        return cls(
            places=to_device(places, device),
            sources=to_device(sources, device),
            attention_bias=to_device(bias[:, None, None, :], device),
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
        bounds: int32 [texts + 1], the same and where the last one ends.
        padding: None if all texts are equally long.
    """

    texts: int
    width: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor
    firsts: torch.Tensor
    bounds: torch.Tensor
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
        is_token = np.arange(width) < lengths[:, None]
        bounds = np.zeros(texts + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return cls(
            texts=texts,
            width=width,
            token_ids=to_device(token_ids[:, :width][is_token].astype(np.int64), device),
            positions=to_device(np.nonzero(is_token)[1], device),
            lengths=to_device(lengths.astype(np.float32), device),
            firsts=to_device(bounds[:-1], device),
            bounds=to_device(bounds.astype(np.int32), device),
            padding=None if is_token.all() else Padding.of(is_token, device),
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


def pool(pooling: Pooling, hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    """One hidden state of each text, from those of its tokens.

    Args:
        pooling: Which, or which mean.
        hidden_states: [tokens, hidden].
        batch: The texts.

    Returns:
        [texts, hidden].
    """
    return _POOLINGS[pooling](hidden_states, batch)


def _mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    # Padding is zero in the rectangle, and the mean is over the tokens that are there.
    return batch.rectangle(hidden_states).sum(1) / batch.lengths[:, None]


def _weighted_mean(hidden_states: torch.Tensor, batch: Batch) -> torch.Tensor:
    weighted = hidden_states * (batch.positions[:, None] + 1)
    # The sum of the places 1 to n.
    total = batch.lengths * (batch.lengths + 1) / 2
    return batch.rectangle(weighted).sum(1) / total[:, None]


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
    """An array as a tensor, which on a CPU shares its memory; a GPU is not waited for."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
