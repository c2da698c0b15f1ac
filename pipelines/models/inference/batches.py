"""Token ids of many texts, and the batches in which an encoder takes them. Runs on an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.tokens.encoding import Encoded

TokenEmbedder = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps token ids int32 [batch, tokens], padded with 0, and lengths int32 [batch], at least 1, to
fp32 [batch, hidden]."""

BATCH_TOKENS = 1024
"""Tokens of a forward pass on a CPU: the activations of more exceed a core's own cache."""


@dataclass(frozen=True)
class TokenRows:
    """Concatenated token ids of texts, int32 [tokens], and lengths, int32 [texts], at least 1."""

    ids: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> TokenRows:
        """Return rows from the ids of each text."""
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, int(lengths.sum())), lengths)

    @classmethod
    def distinct(cls, encoded: Encoded) -> tuple[TokenRows, np.ndarray]:
        """Return the distinct rows of a column without nulls, and the number of each text's row."""
        found = encoded.ids.dictionary_encode()
        different = found.dictionary
        _, offsets, data = different.buffers()
        # Offsets count bytes, four to an id, and the array may be a slice of its buffers.
        bounds = np.frombuffer(offsets, np.int32, len(different) + 1, 4 * different.offset)
        ids = np.frombuffer(data, "<i4", (bounds[-1] - bounds[0]) // 4, int(bounds[0]))
        return cls(ids, np.diff(bounds) // 4), found.indices.to_numpy()


def batches(rows: TokenRows, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield batches: the numbers, int64, of rows of similar length.

    The longest come first, so that a batch too large for the memory fails at once. The limit of
    tokens includes padding; a longer text is a batch alone.
    """
    order = np.argsort(-rows.lengths, kind="stable")
    start = 0
    while start < len(order):
        texts = max(1, batch_tokens // int(rows.lengths[order[start]]))
        yield order[start : start + texts]
        start += texts


def padded(rows: TokenRows, starts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the token ids of rows, int32 [places, longest], padded with 0.

    The starts, int64 [texts], are those of all rows; the places are the numbers of the wanted ones.
    """
    lengths = rows.lengths[places]
    column = np.arange(int(lengths.max()))
    # Padding reads the last token of its text, since nothing may follow the last text.
    sources = starts[places][:, None] + np.minimum(column, lengths[:, None] - 1)
    return np.where(column < lengths[:, None], rows.ids[sources], 0).astype(np.int32, copy=False)


def embed_rows(
    embed: TokenEmbedder, rows: TokenRows, *, hidden: int, batch_tokens: int = BATCH_TOKENS
) -> np.ndarray:
    """Embed texts, special tokens included, in batches of similar length; return them in order.

    The embeddings are fp32 [texts, hidden]. A forward pass has ``batch_tokens``.
    """
    embeddings = np.empty((len(rows.lengths), hidden), np.float32)
    starts = np.cumsum(rows.lengths, dtype=np.int64) - rows.lengths
    for places in batches(rows, batch_tokens):
        embeddings[places] = embed(padded(rows, starts, places), rows.lengths[places])
    return embeddings


def embed_token_ids(
    embed: TokenEmbedder,
    rows: Sequence[Sequence[int]],
    *,
    hidden: int,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """Embed the ids of each text; see :func:`embed_rows`."""
    return embed_rows(embed, TokenRows.of(rows), hidden=hidden, batch_tokens=batch_tokens)


def text_column(texts: Sequence[str] | pa.StringArray) -> pa.StringArray:
    """Return texts as an Arrow column without nulls."""
    # Not above: reading a model needs no pyarrow.
    import pyarrow as pa

    return texts if isinstance(texts, pa.StringArray) else pa.array(list(texts), pa.string())
