"""The shape of a BERT encoder, and what the settings say about one that starts from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pipelines.errors import InputError
from pipelines.models.architecture import Lengths
from pipelines.models.spec import EncoderSpec
from pipelines.settings import EncoderSettings

RANDOM_POSITIONS = 512
"""Rows of the position embedding of an encoder that starts from nothing."""


@dataclass(frozen=True, kw_only=True)
class BertSpec(EncoderSpec):
    """A BERT-family encoder with absolute positions and exact GELU.

    Source: Devlin, Chang, Lee and Toutanova, "BERT: Pre-training of Deep Bidirectional
    Transformers for Language Understanding", NAACL 2019, arXiv:1810.04805.

    Attributes:
        layers: Transformer layers.
        heads: Attention heads, a divisor of ``hidden``.
        intermediate: Width between the two matrices of the feed-forward block.
        positions: Rows of the position embedding.
        pooling: How hidden states become an embedding: their mean, or that of [CLS].
        type_vocabulary: Rows of the segment embedding, of which the first is used.
        layer_norm_epsilon: Added to the variance.
    """

    kind: ClassVar[str] = "bert"

    layers: int
    heads: int
    intermediate: int
    positions: int = RANDOM_POSITIONS
    pooling: Literal["mean", "cls"] = "mean"
    type_vocabulary: int = 2
    layer_norm_epsilon: float = 1e-12
    max_length: int = RANDOM_POSITIONS


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
