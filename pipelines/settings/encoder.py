"""The section `encoder` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from pipelines.catalog import ARCHITECTURES
from pipelines.settings.base import Settings, StoredPath, choice_of
from pipelines.settings.preparing import LONGEST_UNASKED


class FreezeSettings(Settings):
    """Parts of the encoder with the weights of the start."""

    embeddings: bool = False
    """Freeze word and position embeddings."""
    layers: int = Field(default=0, ge=0)
    """Number of first layers to freeze."""

    @property
    def is_on(self) -> bool:
        """Tell whether anything is frozen."""
        return self.embeddings or self.layers > 0


class LoraSettings(Settings):
    """Low-rank adaptation: adds products of two small matrices to layers, and trains only these."""

    rank: int = Field(default=0, ge=0)
    """Rank of the LoRA matrices, then the only trained weights. 0: off. See
    [training](../concepts/training.md#frozen-layers-and-lora)."""
    alpha: float = Field(default=16.0, gt=0)
    """Scale of a LoRA product: `alpha / rank`."""
    targets: tuple[str, ...] = ()
    """Endings of matrix names, without `.weight` (`query`, `attention.self.value`). Empty: all
    matrices of the layers."""
    export: Literal["merged", "adapter"] = "merged"
    """`merged`: the model folder holds the sums; `adapter`: also write a `peft` folder `adapter` in
    `run.folder`."""


class LsaSettings(Settings):
    """Latent semantic analysis: components of an embedding that depend only on a text's words."""

    dimensions: int = Field(default=0, ge=0)
    """Lexical (LSA) features after the encoder's values, from word co-occurrence in the corpus,
    such as 128. 0: none. See [training](../concepts/training.md#lexical-features-lsa)."""
    weight: float = Field(default=0.25, gt=0)
    """Weight of lexical features; the encoder's values have 1."""


class EncoderSettings(Settings):
    """The encoder to train. Its shape is read from here only with `start: random`."""

    start: StoredPath = "default"
    """A checkpoint folder, `random`, or `default` (the packaged all-MiniLM-L6-v2)."""
    kind: Annotated[str, choice_of(ARCHITECTURES)] = "bert"
    """[Architecture](architectures.md) of a random start; a checkpoint names its own. `static`:
    mean of token embeddings, with only `hidden` and `normalise` of the shape."""
    layers: int = Field(default=4, ge=1)
    """Transformer layers of a random start."""
    keep_layers: int | None = Field(default=None, ge=0)
    """Layers of a checkpoint to keep, evenly spaced, for a smaller student. 0: static embeddings,
    from its embeddings of single words. Null: all."""
    hidden: int = Field(default=256, ge=8)
    """Width of layers and embeddings of a random start."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of a random start; a divisor of `hidden`."""
    intermediate: int | None = Field(default=None, ge=8)
    """Feed-forward width of a random start. Null: 4 x `hidden`."""
    pooling: Literal["mean", "cls", "lasttoken", "weightedmean"] = "mean"
    """Pooling of a random start or a plain transformers checkpoint: `mean` of all tokens, `cls`
    (first token), `lasttoken` (decoders), `weightedmean` by position."""
    output_width: int | None = Field(default=None, ge=1)
    """Width of embeddings through a new Dense layer without activation after pooling, such as that
    of a teacher ([asymmetric search](../guides/asymmetric.md)). Null: no such layer."""
    normalise: bool = True
    """Scale embeddings to length 1."""
    max_length: Annotated[int, Field(ge=8)] | Literal["corpus"] | None = Field(
        default=None,
        description=(
            "Most tokens of a text that the trained model reads; see "
            "[two lengths](../concepts/encoders.md#two-lengths). Null: by the start and "
            f"`tokens.max_length`. `corpus`: up to {LONGEST_UNASKED}, if more than half of the "
            "documents are longer."
        ),
    )
    prompts: Mapping[str, str] = Field(default_factory=dict)
    """Prompts by name, added to those of the start: `query` for anchors, `document` for positives
    and negatives."""
    default_prompt_name: str | None = None
    """Prompt of all other texts. Null: the start's, if any."""

    freeze: FreezeSettings = FreezeSettings()
    """Parts that are not trained."""
    lora: LoraSettings = LoraSettings()
    """Low-rank adaptation."""
    lsa: LsaSettings = LsaSettings()
    """Latent semantic analysis."""
