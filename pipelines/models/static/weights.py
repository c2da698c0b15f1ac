"""The weights of a static encoder."""

from __future__ import annotations

from pipelines.models.architecture import Shapes
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import WORDS


def weight_shapes(spec: StaticSpec) -> Shapes:
    """The word embedding alone."""
    return {WORDS: (spec.vocabulary, spec.hidden)}
