"""The declaration of a form for another runtime, and the comparison of its vectors with ours.

A form is a file of this package with an :class:`ExportFormat`, and a line in
:data:`pipelines.catalog.EXPORTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipelines.exports.texts import CheckTexts
from pipelines.models.spec import EncoderSpec
from pipelines.models.weights import Weights

Embed = Callable[[Sequence[str]], np.ndarray]
"""Maps a batch of texts to embeddings, fp32 [texts, width]."""

BATCHES = (64, 3, 1)
"""Sizes of the compared batches."""
EVERY = 8
"""One of so many texts is in the small batches, which take longer."""
_NOTHING = 1e-9
"""Below this length an embedding is that of a text without tokens."""


@dataclass(frozen=True)
class Source:
    """A model to export, as :func:`pipelines.models.folder.read_model` reads it.

    ``digest`` is :func:`pipelines.models.identity.model_digest`. ``documents`` is the model of
    documents, in a form of two models; the other then embeds queries.
    """

    folder: Path
    spec: EncoderSpec
    weights: Weights
    tokenizer: Tokenizer
    digest: str
    documents: Source | None = None

    def before(self, name: str) -> str:
        """Return the prompt before queries or documents."""
        return self.spec.prompts.before(name)


@dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A form of models for other runtimes.

    Attributes:
        libraries: Modules to write and check it; the record of an export has their versions.
        write: Writes a model into an empty folder, with int8 beside fp32 if asked. Returns the
            precision of each file of weights, by its path.
        open: Returns the embedding function of such a file in a folder.
        usage: Yields lines of Markdown for the card: how each reader loads the folder.
        check: Refuses models without this form, by an InputError.
        int8: Why there is no int8; None if there is.
        is_pair: Whether it holds two models; see :attr:`Source.documents`.
        model_of: Returns the model whose embeddings a file of weights gives.
        facts: More for the record of an export.
        notes: Yields what an exact reader needs beyond the folder, for the terminal; given the
            compared texts and their embeddings.
    """

    libraries: tuple[str, ...]
    write: Callable[[Source, Path, bool], Mapping[str, str]]
    open: Callable[[Path, str], Embed]
    usage: Callable[[Source, Mapping[str, Any]], Iterator[str]]
    check: Callable[[EncoderSpec], None] = lambda spec: None
    int8: str | None = None
    is_pair: bool = False
    model_of: Callable[[Source, str], Source] = lambda source, file: source
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[Path, Sequence[str], np.ndarray], Iterator[str]] = (
        lambda folder, texts, expected: iter(())
    )


@dataclass(frozen=True)
class Fit:
    """Cosines of a file's embeddings with the model's, and the largest difference in length.

    ``stretch`` is relative: 0.01 is one per cent.
    """

    least_cosine: float
    mean_cosine: float
    stretch: float


def compare(embed: Embed, texts: CheckTexts, expected: np.ndarray) -> Fit:
    """Embed texts in batches of each size, and compare with their embeddings.

    ``expected`` are those of ``texts.short`` and ``texts.long`` in this order. Long texts are
    batches alone: several would take gigabytes in some models.
    """
    short, longs = len(texts.short), range(len(texts.short), len(expected))
    every = texts.every
    cosines, stretches = [], []
    for size in BATCHES:
        numbers = [*range(0, short, 1 if size == BATCHES[0] else EVERY)]
        batches = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        batches += [[number] for number in longs] if size == 1 else []
        for batch in batches:
            found = embed([every[number] for number in batch])
            cosines.append(cosines_of(found, expected[batch]))
            stretches.append(_stretches(found, expected[batch]))
    all_cosines = np.concatenate(cosines)
    return Fit(
        least_cosine=float(all_cosines.min()),
        mean_cosine=float(all_cosines.mean()),
        stretch=float(np.concatenate(stretches).max()),
    )


def cosines_of(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the cosine of each text's two embeddings, fp64 [texts].

    It is 1 for two zeros, and -1 for one or for numbers that are not finite.
    """
    first, second = found.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
    product = np.maximum(lengths[0] * lengths[1], _NOTHING**2)
    cosines = (first * second).sum(axis=1) / product
    is_zero = (lengths[0] < _NOTHING, lengths[1] < _NOTHING)
    cosines[is_zero[0] != is_zero[1]] = -1
    cosines[is_zero[0] & is_zero[1]] = 1
    return np.where(np.isfinite(cosines), cosines, -1)


def _stretches(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(expected, axis=1)
    differences = np.abs(np.linalg.norm(found, axis=1) - lengths)
    stretches: np.ndarray = differences / np.maximum(lengths, _NOTHING) * (lengths > _NOTHING)
    return stretches
