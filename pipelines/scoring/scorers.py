"""Scorers: teachers that score a query with a document. Plain values on the driver.

A scorer is checked on the driver, and scores on executors. The catalog (``SCORERS``) names each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipelines.errors import InputError
from pipelines.files.copies import local_folder
from pipelines.files.locations import location
from pipelines.files.versions import current
from pipelines.libraries import check_installed
from pipelines.models.inference.backends import GPU_BACKEND
from pipelines.models.inference.backends import PRECISION as EMBEDDING_PRECISION
from pipelines.models.rerankers.folder import Reranker, read_reranker
from pipelines.settings import Config
from pipelines.spark.capacity import task_threads
from pipelines.tokens.start import read_prompts
from pipelines.vectors.column import options_in
from pipelines.vectors.embed import precision_of, precision_on_executors
from pipelines.vectors.embedding import (
    EmbeddingOptions,
    cached_embedder,
    refuse_int8,
    shortened,
    task_device,
)
from pipelines.vectors.nearest import unit_length
from pipelines.vectors.plan import options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MODEL = "scoring.model"
ENCODER = "scoring.encoder"
SCORER = "scoring.scorer"
PRECISION = "scoring.precision"


class Scorer(Protocol):
    """A teacher of pairs; sent to executors."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its scores depend on, by setting, as JSON values."""

    @property
    def resolved(self) -> Mapping[str, str]:
        """The precisions in place of `auto`, by setting; all parts of a table have the same."""

    def in_session(self, session: SparkSession, config: Config, known: Mapping[str, str]) -> Scorer:
        """Return the scorer with what the tasks of a session have: threads, GPUs, precision.

        ``known`` is what is :attr:`resolved` in a begun table.
        """

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Return a score for each query with its document: float32 [pairs]. On an executor."""


@dataclass(frozen=True)
class ScorerKind:
    """A kind of scorer: ``of`` makes it from the settings, or refuses them."""

    of: Callable[[Config], Scorer]


@dataclass(frozen=True)
class CrossEncoderScorer:
    """Scores of a cross-encoder."""

    reranker: Reranker
    precision: str
    logits: bool
    threads: int = 1

    @classmethod
    def of(cls, config: Config) -> CrossEncoderScorer:
        """Read the settings.

        Raises:
            InputError: There is no such cross-encoder, or `transformers` is not installed.
        """
        settings = config.scoring
        check_installed(SCORER, "transformers")
        if settings.model is None:
            raise InputError(MODEL, "it is empty", "Name the folder of a cross-encoder")
        folder = current(location(settings.model, config.storage).expanduser().absolute())
        return cls(read_reranker(folder, MODEL), settings.precision, settings.logits)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model, activation and precision."""
        return {
            MODEL: self.reranker.digest,
            "scoring.logits": self.logits,
            PRECISION: self.precision,
        }

    @property
    def resolved(self) -> Mapping[str, str]:
        """The precision."""
        return {PRECISION: self.precision}

    def in_session(
        self, session: SparkSession, config: Config, known: Mapping[str, str]
    ) -> CrossEncoderScorer:
        """Return the scorer with the threads and the precision of tasks."""
        precision = known.get(PRECISION) or precision_on_executors(
            session, self.precision, GPU_BACKEND
        )
        return replace(self, precision=precision, threads=task_threads(session))

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Score each pair."""
        from pipelines.models.rerankers.torch import cached_cross_encoder

        device = task_device(GPU_BACKEND)
        score = cached_cross_encoder(
            self.reranker, self.precision, device, self.logits, self.threads
        )
        return score(queries, documents)


@dataclass(frozen=True)
class BiEncoderScorer:
    """Cosines of an encoder; queries and documents have its prompts."""

    options: EmbeddingOptions
    prompts: tuple[str | None, str | None]

    @classmethod
    def of(cls, config: Config) -> BiEncoderScorer:
        """Read the settings.

        Raises:
            InputError: There is no such encoder.
        """
        settings = config.scoring
        if settings.encoder is None:
            raise InputError(ENCODER, "it is empty", "Name a sentence-transformers folder")
        refuse_int8(config.embedding.precision, "score")
        try:
            options = options_for(config, settings.encoder)
        except InputError as error:
            if error.key != "embedding.model":
                raise
            raise InputError(ENCODER, error.problem, error.remedy) from None
        asking, answering = read_prompts(local_folder(options.model)).sides
        return cls(options, (asking, answering))

    @property
    def identity(self) -> Mapping[str, Any]:
        """Model, backend and precision."""
        return {
            ENCODER: self.options.model_sha256,
            "embedding.backend": self.options.backend,
            EMBEDDING_PRECISION: self.options.precision,
            "embedding.dimensions": self.options.dimensions,
        }

    @property
    def resolved(self) -> Mapping[str, str]:
        """The precision."""
        return {EMBEDDING_PRECISION: self.options.precision}

    def in_session(
        self, session: SparkSession, config: Config, known: Mapping[str, str]
    ) -> BiEncoderScorer:
        """Return the scorer with the backend, the threads and the precision of tasks."""
        options = options_in(session, self.options, config.embedding.backend)
        precision = known.get(EMBEDDING_PRECISION) or precision_of(session, options)
        return replace(self, options=replace(options, precision=precision))

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Embed each distinct text once, and compare."""
        asking, answering = self.prompts
        found: np.ndarray = np.einsum(
            "ij,ij->i", self._vectors(queries, asking), self._vectors(documents, answering)
        )
        return found

    def _vectors(self, texts: Sequence[str], prompt: str | None) -> np.ndarray:
        options = self.options
        distinct, places = np.unique(np.array(texts, object), return_inverse=True)
        embed = cached_embedder(options, task_device(options.backend))
        vectors = embed(distinct.tolist(), prompt)
        vectors = shortened(vectors, options.dimensions, normalise=options.normalise)
        found: np.ndarray = unit_length(vectors)[places.reshape(-1)]
        return found


@dataclass(frozen=True)
class FusionScorer:
    """A weighted sum of a cross-encoder's probability and a cosine."""

    cross_encoder: CrossEncoderScorer
    encoder: BiEncoderScorer
    weight: float

    @classmethod
    def of(cls, config: Config) -> FusionScorer:
        """Read the settings.

        Raises:
            InputError: One of both models is missing, or the cross-encoder has no sigmoid.
        """
        first, second = CrossEncoderScorer.of(config), BiEncoderScorer.of(config)
        if not first.reranker.is_probability:
            raise InputError(
                MODEL,
                f"{first.reranker.folder} gives logits, which have no common scale with cosines",
                "Name one with a sigmoid, or set scoring.scorer to cross_encoder",
            )
        return cls(first, second, config.scoring.weight)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Both models, and the weight."""
        both = {**self.cross_encoder.identity, **self.encoder.identity}
        return {**both, "scoring.weight": self.weight}

    @property
    def resolved(self) -> Mapping[str, str]:
        """The precisions of both."""
        return {**self.cross_encoder.resolved, **self.encoder.resolved}

    def in_session(
        self, session: SparkSession, config: Config, known: Mapping[str, str]
    ) -> FusionScorer:
        """Return the scorer with both for tasks."""
        return replace(
            self,
            cross_encoder=self.cross_encoder.in_session(session, config, known),
            encoder=self.encoder.in_session(session, config, known),
        )

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Score each pair by both."""
        first = self.cross_encoder.scores(queries, documents)
        second = self.encoder.scores(queries, documents)
        return (self.weight * first + (1 - self.weight) * second).astype(np.float32)


CROSS_ENCODER = ScorerKind(CrossEncoderScorer.of)
BI_ENCODER = ScorerKind(BiEncoderScorer.of)
FUSION = ScorerKind(FusionScorer.of)
