"""The section `encoder` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import ARCHITECTURES
from pipelines.settings.base import Settings, StoredPath, choice_of
from pipelines.settings.preparing import LONGEST_UNASKED


class FreezeSettings(Settings):
    """Parts of the encoder that keep the weights of the start."""

    embeddings: bool = False
    """Do not train what is before the layers: words, positions."""
    layers: int = Field(default=0, ge=0)
    """Do not train so many layers, the first ones."""

    @property
    def is_on(self) -> bool:
        """Tell whether anything is frozen."""
        return self.embeddings or self.layers > 0


class LoraSettings(Settings):
    """Low-rank adaptation: adds products of two small matrices to layers, and trains only these."""

    rank: int = Field(default=0, ge=0)
    """LoRA: train two matrices of this rank beside each target, and nothing else; 0: none. See
    [training](../concepts/training.md#frozen-layers-and-lora)."""
    alpha: float = Field(default=16.0, gt=0)
    """The product of the two is added times `alpha / rank`."""
    targets: tuple[str, ...] = ()
    """How the names of the matrices end, without `.weight` (`query`, `attention.self.value`);
    unset: all matrices of the layers."""
    export: Literal["merged", "adapter"] = "merged"
    """The model folder holds the sums. `adapter`: beside it `run.folder` has a folder `adapter` as
    `peft` writes it."""


class LsaSettings(Settings):
    """Latent semantic analysis: components of an embedding that depend only on a text's words."""

    dimensions: int = Field(default=0, ge=0)
    """Numbers that the model's embeddings have behind those of the encoder, by which of the corpus'
    words stand in texts together, 128 for example; 0: none. See
    [training](../concepts/training.md#lexical-features-lsa)."""
    weight: float = Field(default=0.25, gt=0)
    """How much they count beside the encoder's numbers, which count 1."""


class EncoderSettings(Settings):
    """The encoder to train. Its shape is read from here only with `start: random`."""

    start: StoredPath = "default"
    """A checkpoint folder, `random`, or `default` (the packaged all-MiniLM-L6-v2)."""
    kind: Annotated[str, choice_of(ARCHITECTURES)] = "bert"
    """The [architecture](architectures.md) of a random start; a checkpoint tells its own. `bert`: a
    transformer; `static`: the mean of static token embeddings, for which of the shape keys only
    `hidden` and `normalise` count."""
    layers: int = Field(default=4, ge=1)
    """Transformer layers."""
    keep_layers: int | None = Field(default=None, ge=0)
    """Of a checkpoint: keep so many of its layers, evenly spaced, as a smaller encoder that is to
    learn from the whole one; 0: static embeddings that begin with what it makes of each word alone;
    unset: all."""
    hidden: int = Field(default=256, ge=8)
    """Width of the layers and of embeddings."""
    heads: int = Field(default=4, ge=1)
    """Attention heads; a divisor of `hidden`."""
    intermediate: int | None = Field(default=None, ge=8)
    """Feed-forward width; 4 x `hidden` unless set."""
    pooling: Literal["mean", "cls", "lasttoken", "weightedmean"] = "mean"
    """Pooling of a random start, and of a checkpoint that is no sentence-transformers folder:
    `mean` of all tokens, `cls` the first token, `lasttoken` (for decoders), `weightedmean` by the
    tokens' places."""
    normalise: bool = True
    """Scale embeddings to length 1."""
    max_length: Annotated[int, Field(ge=8)] | Literal["corpus"] | None = Field(
        default=None,
        description=(
            "Most tokens of a text that the trained model reads. Unset: as many as the start "
            "does, or `tokens.max_length` if that is more; `random`: `tokens.max_length`, or as it "
            "has positions; a random `static`: all. `corpus`: as unset, but where more than half "
            f"of the documents are longer, as the start has positions, up to {LONGEST_UNASKED}."
        ),
    )
    prompts: Mapping[str, str] = Field(default_factory=dict)
    """Texts that are put before others, by name, beside those of the start: `query` before the
    anchor, `document` before the positive and the negative."""
    default_prompt_name: str | None = None
    """The prompt of texts that are neither; unset: the start's, if it has one."""

    freeze: FreezeSettings = FreezeSettings()
    """Parts that are not trained."""
    lora: LoraSettings = LoraSettings()
    """Low-rank adaptation."""
    lsa: LsaSettings = LsaSettings()
    """Latent semantic analysis."""
