"""Losses for learning from a larger model, the teacher: from its scores, or its vectors.

Scores of a positive and of hard negatives come with the corpus, and vectors with the lanes. So a
teacher sees each text once, and not in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss
from pipelines.losses.operations import Operations, both_forms
from pipelines.settings.objective import ObjectiveSettings


class MarginMseSettings(ObjectiveSettings):
    """How cosines are compared with a teacher's scores."""

    temperature: float = Field(
        default=0.05,
        gt=0,
        description=(
            "Divides cosine similarities before they are compared with a teacher's scores: their "
            "margins reach 2 divided by it. 1 for a teacher whose scores are cosines."
        ),
    )


def margin_mse(
    operations: Operations, sides: Sequence[Any], scores: Any, settings: MarginMseSettings
) -> Any:
    """Return the mean squared error of the positive's margin over the hard negatives.

    Sides: anchors, positives, hard negatives. Scores: [examples, 1 + negatives], the teacher's.

    Source: Hofstätter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture
    Knowledge Distillation", 2020, arXiv:2010.02666; the MarginMSELoss of sentence-transformers.
    """
    anchor, positive, *negatives = sides
    margins = [operations.cosines(anchor, positive - negative) for negative in negatives]
    student = operations.columns(margins) / settings.temperature
    return operations.mean((student - (scores[:, :1] - scores[:, 1:])) ** 2)


MARGIN_MSE = Loss(
    name="margin_mse",
    summary=("MarginMSE: a teacher's margins between the positive and each hard negative."),
    needs="candidate_scores",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=MarginMseSettings,
    forms=both_forms(margin_mse),
)


class ListwiseKlSettings(ObjectiveSettings):
    """How similarities and scores become shares."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides cosine similarities before the softmax."
    )
    teacher_temperature: float = Field(
        default=1.0, gt=0, description="Divides the teacher's scores before theirs."
    )


def listwise_kl(
    operations: Operations, sides: Sequence[Any], scores: Any, settings: ListwiseKlSettings
) -> Any:
    """Return the divergence of the model's choice among candidates from the teacher's.

    It is the mean Kullback-Leibler divergence of two softmaxes: of the model's similarities, and of
    the teacher's scores, [examples, 1 + negatives].

    Source: Lin et al., "In-Batch Negatives for Knowledge Distillation with Tightly-Coupled Teachers
    for Dense Retrieval", RepL4NLP 2021. The DistillKLDivLoss of sentence-transformers is this loss
    times the square of the model's temperature.
    """
    anchor, *candidates = sides
    similarities = operations.columns([operations.cosines(anchor, side) for side in candidates])
    student = operations.log_softmax(similarities / settings.temperature)
    teacher = operations.log_softmax(scores / settings.teacher_temperature)
    return operations.mean(operations.cosines(operations.exp(teacher), teacher - student))


LISTWISE_KL = Loss(
    name="listwise_kl",
    summary=("A teacher's distribution over an example's positive and hard negatives."),
    needs="candidate_scores",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=ListwiseKlSettings,
    forms=both_forms(listwise_kl),
)


class EmbeddingDistillationSettings(ObjectiveSettings):
    """How vectors are compared."""

    distance: Literal["cosine", "mse"] = Field(
        default="cosine",
        description=(
            "1 less the cosine to the teacher's vector, or the mean squared difference of their "
            "numbers: of vectors of length 1 the same, times 2 divided by the width."
        ),
    )
    reduction: Literal["pca", "cut"] = Field(
        default="pca",
        description=(
            "How a teacher's vectors that are wider than the encoder's become as wide: by their "
            "principal axes, which are fixed when the run begins, or cut to their first numbers, "
            "for a teacher that was trained to be cut."
        ),
    )

    @property
    def projects_teacher(self) -> bool:
        """Whether the run projects a teacher's vectors to the width of the embeddings."""
        return self.reduction == "pca"

    def check_width(self, width: int, teacher: int | None = None) -> None:
        """Refuse also a teacher with vectors narrower than the embeddings."""
        super().check_width(width, teacher)
        if teacher is not None and teacher < width:
            raise InputError(
                "objective.name",
                f"the teacher's vectors have {teacher} dimensions, and the embeddings have {width}",
                "Set it to similarity_distillation, or take a wider teacher",
            )


def embedding_distillation(
    operations: Operations,
    sides: Sequence[Any],
    teacher: Sequence[Any],
    settings: EmbeddingDistillationSettings,
) -> Any:
    """Return the mean distance of embeddings from the teacher's, over texts and sides.

    The model learns from raw text, without pairs. The teacher's vectors have this width or
    more: their first numbers count, scaled to length 1. Wider vectors are reduced beforehand, see
    :mod:`pipelines.runs.run`.

    Sources: Reimers and Gurevych, "Making Monolingual Sentence Embeddings Multilingual using
    Knowledge Distillation", EMNLP 2020, arXiv:2004.09813; Kim et al., "EmbedDistill", 2023,
    arXiv:2301.12005; the EmbedDistillLoss and MSELoss of sentence-transformers.
    """
    student = operations.joined(sides)
    wanted = operations.cut(operations.joined(teacher), like=student)
    if settings.distance == "mse":
        return operations.mean((student - wanted) ** 2)
    return 1 - operations.mean(operations.cosines(student, wanted))


EMBEDDING_DISTILLATION = Loss(
    name="embedding_distillation",
    summary="The distance between the teacher's embeddings and the model's.",
    needs="teacher",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=EmbeddingDistillationSettings,
    forms=both_forms(embedding_distillation),
)


class SimilarityDistillationSettings(ObjectiveSettings):
    """None: the teacher says how similar texts are."""


def similarity_distillation(
    operations: Operations,
    sides: Sequence[Any],
    teacher: Sequence[Any],
    settings: SimilarityDistillationSettings,
) -> Any:
    """Return the mean squared difference between the model's and the teacher's cosines.

    It compares all texts of a granule with one another; the teacher's vectors may have any width.

    Source: Tung and Mori, "Similarity-Preserving Knowledge Distillation", ICCV 2019,
    arXiv:1907.09682, with cosines in place of their scaled products.
    """
    student, wanted = operations.joined(sides), operations.joined(teacher)
    apart = operations.products(student, student) - operations.products(wanted, wanted)
    # A text's cosine with itself is 1 for both.
    return operations.mean_of_others(apart**2)


SIMILARITY_DISTILLATION = Loss(
    name="similarity_distillation",
    summary="A teacher's similarities among the texts of a granule.",
    needs="teacher",
    sides=("anchor", "positive", "negative"),
    uses_negatives=True,
    settings=SimilarityDistillationSettings,
    forms=both_forms(similarity_distillation),
)
