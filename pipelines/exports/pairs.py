"""Two models for one search: do the queries of the first find the documents of the second?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.errors import InputError
from pipelines.exports.texts import CheckTexts
from pipelines.vectors.nearest import unit_length

LEAST_FOUND = 0.1
"""Share of the texts. Two models of unrelated vectors find one text, whatever their number."""
FEWEST = 50
"""Texts that tell something."""
_EQUAL = 1e-6


@dataclass(frozen=True)
class FoundTexts:
    """How many texts are nearest to themselves, embedded by one model each; and their cosine."""

    found: int
    texts: int
    mean_cosine: float

    def __str__(self) -> str:
        return (
            f"embedded as queries, {self.found:,} of {self.texts:,} texts find themselves among "
            f"the documents; mean cosine {self.mean_cosine:.3f}"
        )


def found_texts(queries: np.ndarray, documents: np.ndarray, texts: CheckTexts) -> FoundTexts:
    """Compare embeddings of the same texts by two models; only the user's own texts count."""
    places = slice(len(texts.own), len(texts.short))
    scores = unit_length(queries[places]) @ unit_length(documents[places]).T
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
            f"{found}. The vectors of both models have nothing in common",
            "Train the model of queries with the other one as teacher.model",
        )
