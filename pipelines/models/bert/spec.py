"""The shape of an encoder of the BERT family, and what the settings say about a random start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipelines.errors import InputError
from pipelines.models.architecture import Lengths
from pipelines.models.spec import DropoutRates, EncoderSpec, Pooling
from pipelines.settings import EncoderSettings

RANDOM_POSITIONS = 512
"""Rows of the position embedding of an encoder that starts from nothing."""


@dataclass(frozen=True, kw_only=True)
class BertSpec(EncoderSpec):
    """An encoder of the BERT family, with absolute positions and exact GELU.

    The other members of the family derive from it: they are BERT without some of its parts, with
    one more, or under other names.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding", NAACL 2019, arXiv:1810.04805.

    Attributes:
        layers: Transformer layers.
        heads: Attention heads, a divisor of ``hidden``.
        intermediate: Width between the two matrices of the feed-forward block.
        positions: Rows of the position embedding, which are the places of a text that there can be.
        pooling: How hidden states become an embedding.
        type_vocabulary: Rows of the segment embedding, of which the first is used; 0 without one.
        layer_norm_epsilon: Added to the variance.
        embedding_size: Width of words and positions; None: that of the layers. If it is another, a
            dense layer leads to that.
        relative_buckets: Distances that attention tells apart by a learnt bias; 0 without one.
        hidden_dropout: Share of hidden states that it was made to be trained without.
        attention_dropout: Share of attention's probabilities.
        model_type: What its config.json calls it.
    """

    kind: ClassVar[str] = "bert"

    layers: int
    heads: int
    intermediate: int
    positions: int = RANDOM_POSITIONS
    pooling: Pooling = "mean"
    type_vocabulary: int = 2
    layer_norm_epsilon: float = 1e-12
    embedding_size: int | None = None
    relative_buckets: int = 0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    model_type: str = "bert"
    max_length: int = RANDOM_POSITIONS

    @property
    def own_dropout(self) -> DropoutRates | None:
        """What it was made to be trained with; None without dropout."""
        rates = DropoutRates(self.hidden_dropout, self.attention_dropout, own=True)
        return rates if rates.hidden or rates.attention else None

    @property
    def placeless_token(self) -> int | None:
        """The token that counts no position where a text holds it; None if all count one."""
        return None

    @property
    def word_width(self) -> int:
        """Width of the rows of words, positions and segments."""
        return self.embedding_size or self.hidden

    @property
    def projects(self) -> bool:
        """Whether a dense layer leads from words to layers."""
        return self.word_width != self.hidden


def check_settings(encoder: EncoderSettings) -> None:
    """Refuses a width that the heads cannot share.

    Raises:
        InputError: With the key ``encoder.heads``.
    """
    if encoder.hidden % encoder.heads:
        raise InputError(
            "encoder.heads",
            f"{encoder.heads} does not divide encoder.hidden",
            f"{encoder.hidden} is to be divided",
        )


def refuse_random(encoder: EncoderSettings) -> None:
    """Refuses a random start, for architectures that are there for their checkpoints.

    Raises:
        InputError: With the key ``encoder.kind``.
    """
    if encoder.start == "random":
        raise InputError(
            "encoder.kind",
            f"`{encoder.kind}` starts from a checkpoint only",
            "name its folder in encoder.start, or encoder.kind: bert",
        )


def shape(encoder: EncoderSettings) -> dict[str, Any]:
    """The fields of a random start's spec that not all architectures have."""
    return {
        "layers": encoder.layers,
        "heads": encoder.heads,
        "intermediate": encoder.intermediate or 4 * encoder.hidden,
        "pooling": encoder.pooling,
    }


def random_lengths(training_length: int | None) -> Lengths:
    """As far as it is trained: nothing would train the positions behind that."""
    return Lengths(training_length or RANDOM_POSITIONS, RANDOM_POSITIONS)


def described(spec: BertSpec) -> str:
    """For the model card."""
    return f"with {spec.layers} layers of {spec.hidden}"


def described_settings(encoder: EncoderSettings) -> str:
    """For the report of a run."""
    return f"{encoder.layers} layers of {encoder.hidden}, {encoder.heads} heads"
