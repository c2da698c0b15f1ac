"""The card of the start of a training, which is kept beside what is made of it."""

from __future__ import annotations

from pipelines.models.architecture import architecture_of
from pipelines.models.spec import UNLIMITED, EncoderSpec


def start_card(spec: EncoderSpec) -> str:
    """What a start is, as Markdown; that of a trained model is in :mod:`pipelines.model_card`."""
    length = "all tokens" if spec.max_length == UNLIMITED else f"{spec.max_length} tokens"
    return (
        f"A sentence encoder {architecture_of(spec).described(spec)}, as a training with "
        f"sentence-pipelines begins with it.\nIt reads {length} of a text.\n"
    )
