"""The section `encoder` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.models import ARCHITECTURES
from pipelines.settings.base import Settings, choice_of
from pipelines.settings.paths import StoredPath

if TYPE_CHECKING:
    from pipelines.settings import Config


class EncoderSettings(Settings):
    """The encoder that is trained. Its shape is read from here only with `start: random`."""

    start: StoredPath = Field(
        default="default",
        description="A checkpoint folder, `random`, or `default` (the packaged all-MiniLM-L6-v2).",
    )
    kind: Annotated[str, choice_of(ARCHITECTURES)] = Field(
        default="bert",
        description=(
            "The [architecture](architectures.md) of a random start; a checkpoint tells its own. "
            "`bert`: a transformer; `static`: the mean of static token embeddings, for which of "
            "the shape keys only `hidden` and `normalise` count."
        ),
    )
    layers: int = Field(default=4, ge=1, description="Transformer layers.")
    hidden: int = Field(default=256, ge=8, description="Width of the layers and of embeddings.")
    heads: int = Field(default=4, ge=1, description="Attention heads; a divisor of `hidden`.")
    intermediate: int | None = Field(
        default=None, ge=8, description="Feed-forward width; 4 x `hidden` unless set."
    )
    pooling: Literal["mean", "cls", "lasttoken", "weightedmean"] = Field(
        default="mean",
        description=(
            "Pooling of a random start, and of a checkpoint that is no sentence-transformers "
            "folder: `mean` of all tokens, `cls` the first token, `lasttoken` (for decoders), "
            "`weightedmean` by the tokens' places."
        ),
    )
    normalise: bool = Field(default=True, description="Scale embeddings to length 1.")
    max_length: int | None = Field(
        default=None,
        ge=8,
        description=(
            "Most tokens of a text that the trained model reads. Unset: as many as the start "
            "does, or `tokens.max_length` if that is more; `random`: `tokens.max_length`, or as it "
            "has positions; a random `static`: all."
        ),
    )
    prompts: Mapping[str, str] = Field(
        default_factory=dict,
        description=(
            "Texts that are put before others, by name, beside those of the start: `query` before "
            "the anchor, `document` before the positive and the negative."
        ),
    )
    default_prompt_name: str | None = Field(
        default=None,
        description="The prompt of texts that are neither; unset: the start's, if it has one.",
    )

    def check_with(self, config: Config) -> None:
        """Refuses shapes that no encoder has."""
        if self.start == "default" and self.kind != type(self).model_fields["kind"].default:
            raise InputError(
                "encoder.kind",
                f"encoder.start `default` is no `{self.kind}`",
                "set encoder.start: random",
            )
        ARCHITECTURES.load(self.kind).check_settings(self)
