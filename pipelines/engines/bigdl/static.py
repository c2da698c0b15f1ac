"""Static embeddings in BigDL's dllib; see :class:`pipelines.engines.bigdl.form.Form`."""

from __future__ import annotations

from typing import Any

from pipelines.engines.bigdl.form import Builder
from pipelines.models.static.architecture import StaticSpec
from pipelines.models.weights import WORDS


def token_floats(spec: StaticSpec, tokens: int) -> int:
    """Return the count of fp32 numbers per token that forward and backward keep, amply.

    They are vectors and gradients, whatever the `tokens` of the longest text.
    """
    return 26 * spec.hidden


def encode(spec: StaticSpec, builder: Builder, ids: Any) -> Any:
    """Return the mean of the vectors between the first and the last token; zeros without any."""
    vectors = builder.token_vectors(ids, {WORDS: spec.vocabulary}, spec.hidden)
    return builder.pool(vectors, "inner", spec.hidden)
