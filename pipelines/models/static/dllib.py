"""Static embeddings in BigDL's dllib; see :class:`pipelines.models.frameworks.dllib.Form`."""

from __future__ import annotations

from typing import Any

from pipelines.models.frameworks.dllib import Builder
from pipelines.models.static.spec import StaticSpec
from pipelines.models.weights import WORDS


def encode(spec: StaticSpec, builder: Builder, ids: Any) -> Any:
    """The mean of what is between the first and the last token; zeros if nothing is."""
    vectors = builder.token_vectors(ids, {WORDS: spec.vocabulary}, spec.hidden)
    return builder.pool(vectors, "inner", spec.hidden)
