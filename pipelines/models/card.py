"""The model card: what a person should know of a model folder before using it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.models.architecture import architecture_of
from pipelines.models.spec import EncoderSpec
from pipelines.tokens.lengths import UNLIMITED, told_cuts


def model_card(
    spec: EncoderSpec,
    steps: int,
    tokens: Mapping[str, Any],
    dimensions: Sequence[int] = (),
    state: str = "",
) -> str:
    """The card of a model, as Markdown.

    Args:
        spec: Its shape.
        steps: Of training; 0 for a start.
        tokens: The manifest of the tokens that it was trained on.
        dimensions: Widths to which its embeddings may be cut.
        state: Which of the states of training it is; see
            :func:`pipelines.runs.choice.told_choice`.
    """
    shape = architecture_of(spec).described(spec)
    length = "all tokens" if spec.max_length == UNLIMITED else f"{spec.max_length} tokens"
    if spec.dense:
        shape = f"{shape} and embeddings of {spec.embedding_width}"
    lines = [
        f"A sentence encoder {shape}, after {steps} steps of training with sentence-pipelines.",
        f"It reads {length} of a text.",
    ]
    if state:
        lines.append(f"It is {state}.")
    if steps:
        lines.append(f"It was trained on {told_cuts(tokens)}.")
    shorter = sorted(set(dimensions) - {spec.embedding_width}, reverse=True)
    if shorter:
        widths = ", ".join(map(str, shorter))
        lines.append(
            f"Its embeddings have {spec.embedding_width} numbers and were trained to be cut to "
            f"{widths} (`truncate_dim` of sentence-transformers)."
        )
    return "\n".join([*lines, *_prompts(spec)]) + "\n"


def _prompts(spec: EncoderSpec) -> Iterator[str]:
    """A list of the prompts, where there are any."""
    named = [(name, text) for name, text in spec.prompts.texts if text]
    if named:
        yield "\nIt expects these prompts before texts:\n"
    for name, text in named:
        note = ", unless another is named" if name == spec.prompts.default else ""
        yield f"- `{name}`: `{text}`{note}"
