"""The shape of an encoder: everything about it but its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """A BERT-family encoder with absolute positions and exact GELU, or a static bag.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding", NAACL 2019, arXiv:1810.04805.

    A bag has no weights but the word embedding. It embeds a text as the mean of its tokens'
    vectors without the first and the last token's ([CLS] and [SEP]), and a text of no other tokens
    as zeros. What only a transformer has is 0 in its spec; see :meth:`bag`. Source: Wieting,
    Bansal, Gimpel and Livescu, "Towards Universal Paraphrastic Sentence Embeddings", ICLR 2016,
    arXiv:1511.08198.

    Attributes:
        kind: Whether it is a transformer or a bag.
        vocabulary: Rows of the word embedding.
        layers: Transformer layers.
        hidden: Width of the residual stream and of an embedding.
        heads: Attention heads, a divisor of ``hidden``.
        intermediate: Width between the two matrices of the feed-forward block.
        positions: Rows of the position embedding.
        pooling: How token vectors become a sentence: their mean, or the vector of [CLS].
        normalise: Whether embeddings are scaled to length 1.
        type_vocabulary: Rows of the segment embedding, of which the first is used.
        layer_norm_epsilon: Added to the variance.
        max_length: Tokens that are read of a text, [CLS] and [SEP] included.
        pad_token_id: Fills short texts.
    """

    kind: Literal["transformer", "bag"] = "transformer"
    vocabulary: int
    layers: int
    hidden: int
    heads: int
    intermediate: int
    positions: int = 512
    pooling: Literal["mean", "cls"] = "mean"
    normalise: bool = True
    type_vocabulary: int = 2
    layer_norm_epsilon: float = 1e-12
    max_length: int = 64
    pad_token_id: int = 0

    @classmethod
    def bag(
        cls, *, vocabulary: int, hidden: int, normalise: bool = True, max_length: int = 64
    ) -> EncoderSpec:
        """The spec of a static bag of token embeddings."""
        return cls(
            kind="bag",
            vocabulary=vocabulary,
            layers=0,
            hidden=hidden,
            heads=0,
            intermediate=0,
            positions=0,
            pooling="mean",
            normalise=normalise,
            type_vocabulary=0,
            layer_norm_epsilon=0.0,
            max_length=max_length,
        )

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :meth:`from_json` reads back to an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EncoderSpec:
        """Reads what :meth:`to_json` wrote; without a kind it is a transformer."""
        return cls(**value)
