"""The shape of a static encoder, and what the settings say about one that starts from nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipelines.models.architecture import Lengths
from pipelines.models.spec import UNLIMITED, EncoderSpec
from pipelines.settings import EncoderSettings


@dataclass(frozen=True, kw_only=True)
class StaticSpec(EncoderSpec):
    """Static token embeddings, which have no weights but the word embedding.

    A text is embedded as the mean of its tokens' vectors without the first and the last token's
    ([CLS] and [SEP]), and a text of no other tokens as zeros. Source: Wieting, Bansal, Gimpel and
    Livescu, "Towards Universal Paraphrastic Sentence Embeddings", ICLR 2016, arXiv:1511.08198.
    """

    kind: ClassVar[str] = "static"


def check_settings(encoder: EncoderSettings) -> None:
    """Any width will do."""


def shape(encoder: EncoderSettings) -> dict[str, Any]:
    """It has no fields but those of all architectures."""
    return {}


def random_lengths(training_length: int | None) -> Lengths:
    """Whole texts, however long those of training are: it has no positions to be trained."""
    return Lengths(UNLIMITED, UNLIMITED)


def described(spec: StaticSpec) -> str:
    """For the model card."""
    return f"that takes the mean of its tokens' static embeddings of {spec.hidden}"


def described_settings(encoder: EncoderSettings) -> str:
    """For the report of a run."""
    return f"static token embeddings of {encoder.hidden}"
