"""The section `tokens` of the settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.settings.base import Settings
from pipelines.settings.paths import StoredPath

SHORTEST_TEXT, LONGEST_TEXT = 8, 32_768
"""Tokens that ``tokens.max_length`` may be, if the model reads so many."""
LONGEST_UNASKED = 512
"""Tokens of a text that training reads at most where no length is set: what more cost in memory, a
user should have asked for."""


class TokenSettings(Settings):
    """Vocabulary and token ids."""

    vocabulary: StoredPath = Field(
        default="start",
        description="`start`: the start checkpoint's; `train`: a new one; or a folder.",
    )
    model: Literal["wordpiece", "bpe", "unigram"] = Field(
        default="wordpiece", description="Algorithm of a vocabulary that is trained."
    )
    vocabulary_size: int = Field(
        default=30522, ge=100, description="Entries of a vocabulary that is trained."
    )
    lowercase: bool = Field(
        default=True, description="Whether a vocabulary that is trained lower-cases texts."
    )
    max_length: int | None = Field(
        default=None,
        ge=SHORTEST_TEXT,
        le=LONGEST_TEXT,
        description=(
            "Tokens of a text that training reads, [CLS] and [SEP] included; cut after. At most as "
            "many as the model reads. Unset: as many as leave 99 % of the examples whole, up to "
            f"{LONGEST_UNASKED}. Memory and time of a granule grow with it: set it, to 64 for "
            "example, where texts are short; `training.tokens_per_micro_batch` is for long ones."
        ),
    )
