"""The shape of an encoder: everything about it but its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from pipelines.catalog import ARCHITECTURES
from pipelines.tokens.start import NO_PROMPTS, Prompts

UNLIMITED = 2**31 - 1
"""The length of models that read texts whole, in tokens."""

Pooling: TypeAlias = Literal["mean", "cls", "lasttoken", "weightedmean"]
"""How a text's hidden states become one, by sentence-transformers' names: their mean, the first,
the last, or their mean weighted by place, from 1 on."""
Activation: TypeAlias = Literal["tanh", "identity"]


class DropoutRates(NamedTuple):
    """Shares of hidden states and of attention's probabilities set to zero in training.

    ``own`` rates are the checkpoint's, which may have more than these two.
    """

    hidden: float
    attention: float
    own: bool = False


class NoisePlace(NamedTuple):
    """The place of a segment in a larger one whose noise it has a part of.

    Attributes:
        texts: Texts before it.
        tokens: Tokens before it.
        width: The longest text of the larger one, in tokens; 0 for the segment's own.
    """

    texts: int = 0
    tokens: int = 0
    width: int = 0


WHOLE_NOISE = NoisePlace()
"""Of a segment with all of its noise."""


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer between pooling and normalising, a Dense module; the width is its output's."""

    width: int
    bias: bool = True
    activation: Activation = "tanh"


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """The fields of every architecture; each derives its own spec.

    Attributes:
        kind: Name of the architecture in :data:`pipelines.catalog.ARCHITECTURES`.
        vocabulary: Rows of the word embedding.
        hidden: Width of the layers, and of an embedding if no dense layer follows them.
        dense: Dense layers after pooling, in order.
        normalise: Whether embeddings are scaled to length 1.
        max_length: Tokens read of a text, [CLS] and [SEP] included.
        lsa: Numbers after those of the encoder, see :mod:`pipelines.models.lsa`; 0 for none.
    """

    kind: ClassVar[str]

    vocabulary: int
    hidden: int
    dense: tuple[Dense, ...] = ()
    normalise: bool = True
    max_length: int = UNLIMITED
    pad_token_id: int = 0
    prompts: Prompts = NO_PROMPTS
    lsa: int = 0

    @property
    def embedding_width(self) -> int:
        """Width of an embedding."""
        return (self.dense[-1].width if self.dense else self.hidden) + self.lsa

    @property
    def own_dropout(self) -> DropoutRates | None:
        """The encoder's own dropout in training; None without."""
        return None

    def dropout(self, share: float | None) -> DropoutRates | None:
        """Return the dropout of training, at every place; a share of None is the encoder's own."""
        if share is None:
            return self.own_dropout
        return DropoutRates(share, share) if share else None

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that :meth:`from_json` reads back to an equal value."""
        return {"kind": self.kind, **asdict(self), "prompts": self.prompts.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EncoderSpec:
        """Read the output of :meth:`to_json`; without a kind it is a `bert`.

        Earlier releases wrote one set of fields for all architectures, with zeros for missing
        parts. So unknown fields are ignored.

        Raises:
            ValueError: A value is missing, or of another type.
            InputError: There is no architecture of its kind.
        """
        spec = ARCHITECTURES.load(value.get("kind", "bert")).spec
        names = (field.name for field in fields(spec))
        known = {name: value[name] for name in names if name in value}
        dense = tuple(Dense(**layer) for layer in value.get("dense", ()))
        prompts = Prompts.from_json(value.get("prompts", {}))
        values = {**known, "dense": dense, "prompts": prompts}
        found: EncoderSpec = TypeAdapter(spec).validate_python(values)
        return found
