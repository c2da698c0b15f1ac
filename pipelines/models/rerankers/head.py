"""The head of a cross-encoder: its weights by name, and the most tokens of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipelines.models.spec import EncoderSpec

if TYPE_CHECKING:
    from pipelines.models.architecture import Shapes

DENSE, SCORE = "rerank.dense.", "rerank.score."
"""Prefixes of the head's weights: a dense layer of the encoder's width, and the score."""
ACTIVATIONS: Mapping[str, str] = {
    "bert": "tanh",
    "roberta": "tanh",
    "mpnet": "tanh",
    "distilbert": "relu",
    "electra": "gelu",
}
"""The function after the dense layer, by architecture, as `transformers` has it."""


def head_shapes(spec: EncoderSpec) -> Shapes:
    """Return the shapes of the head."""
    return {
        f"{DENSE}weight": (spec.hidden, spec.hidden),
        f"{DENSE}bias": (spec.hidden,),
        f"{SCORE}weight": (1, spec.hidden),
        f"{SCORE}bias": (1,),
    }


def pair_limit(spec: EncoderSpec) -> int:
    """Return the most tokens of a pair: two texts of the model's length, within its positions."""
    return min(2 * spec.max_length - 1, getattr(spec, "positions", 2 * spec.max_length))
