"""The shape of an encoder: everything about it but its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from pipelines.models import ARCHITECTURES
from pipelines.tokens.lengths import UNLIMITED
from pipelines.tokens.prompts import NO_PROMPTS, Prompts


@dataclass(frozen=True, kw_only=True)
class EncoderSpec:
    """What every architecture has; each derives a spec of its own.

    Attributes:
        kind: Name of the architecture in :data:`pipelines.models.ARCHITECTURES`.
        vocabulary: Rows of the word embedding.
        hidden: Width of an embedding.
        normalise: Whether embeddings are scaled to length 1.
        max_length: Tokens that are read of a text, [CLS] and [SEP] included.
        pad_token_id: Fills short texts.
        prompts: What stands before texts.
    """

    kind: ClassVar[str]

    vocabulary: int
    hidden: int
    normalise: bool = True
    max_length: int = UNLIMITED
    pad_token_id: int = 0
    prompts: Prompts = NO_PROMPTS

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :meth:`from_json` reads back to an equal value."""
        return {"kind": self.kind, **asdict(self), "prompts": self.prompts.to_json()}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EncoderSpec:
        """Reads what :meth:`to_json` wrote; without a kind it is a `bert`.

        Earlier releases wrote one set of fields for all architectures, with zeros where one has no
        such thing; what a spec does not have is left out.
        """
        spec = ARCHITECTURES.load(value.get("kind", "bert")).spec
        known = {name: value[name] for name in (own.name for own in fields(spec)) if name in value}
        return spec(**{**known, "prompts": Prompts.from_json(value.get("prompts", {}))})
