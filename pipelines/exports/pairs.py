"""The check of two models for one search: the first embeds queries, the second documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.errors import InputError
from pipelines.vectors.nearest import unit_length

LEAST_FOUND = 0.1
"""Share of the texts. Two models of unrelated vectors find one text, whatever their number."""
FEWEST = 50
"""The fewest texts for a verdict."""
_EQUAL = 1e-6


@dataclass(frozen=True)
class FoundTexts:
    """Number of texts whose own document is the nearest one to them, and their mean cosine."""

    found: int
    texts: int
    mean_cosine: float

    def __str__(self) -> str:
        return (
            f"embedded as queries, {self.found:,} of {self.texts:,} texts find themselves among "
            f"the documents; mean cosine {self.mean_cosine:.3f}"
        )


def found_texts(queries: np.ndarray, documents: np.ndarray) -> FoundTexts:
    """Compare embeddings of the same texts by two models, fp32 [texts, width] each."""
    scores = unit_length(queries) @ unit_length(documents).T
    own = scores.diagonal()
    # Equal texts have equal vectors.
    found = int((own >= scores.max(axis=1, initial=-1) - _EQUAL).sum())
    return FoundTexts(found, len(own), float(own.mean()) if len(own) else 0.0)


def check_found(found: FoundTexts) -> None:
    """Refuse models of unrelated vectors.

    Raises:
        InputError: Hardly any text finds itself.
    """
    if found.texts >= FEWEST and found.found < LEAST_FOUND * found.texts:
        raise InputError(
            "--documents",
            f"{found}. The vectors of both models are unrelated",
            "Train the model of queries with the other one as teacher.model",
        )
