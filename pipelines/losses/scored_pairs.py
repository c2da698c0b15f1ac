"""Losses of pairs with a score: the target of their cosine, or their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.losses.operations import Operations, both_forms
from pipelines.settings.objective import ObjectiveSettings


class CosineRegressionSettings(ObjectiveSettings):
    """None: the scores say how similar two texts are."""


def cosine_regression(
    operations: Operations, sides: Sequence[Any], scores: Any, settings: CosineRegressionSettings
) -> Any:
    """Return the mean squared error between the cosine similarity of a pair and its score.

    Source: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019, arXiv:1908.10084, section 3.
    """
    return operations.mean((operations.cosines(*sides) - scores) ** 2)


def cosine_regression_in_bigdl(
    sides: Sequence[Any], examples: int, settings: CosineRegressionSettings
) -> tuple[Any, Any]:
    """Return the cosine similarities, and dllib's mean squared error to the scores.

    The sides are nodes of a graph, [granules, examples, width] each, of length 1. Returned are a
    node [granules x examples] and the criterion.
    """
    from bigdl.dllib.nn import criterion, layer

    product = layer.CMulTable()(list(sides))
    # Of the class's two last arguments each sets the other: this is a sum, not a mean.
    cosine = layer.Sum(3, squeeze=False, size_average=True)(product)
    return layer.InferReshape([-1])(cosine), criterion.MSECriterion()


COSINE_REGRESSION = Loss(
    name="cosine_regression",
    summary="Squared error between the cosine similarity of a pair and its score.",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=CosineRegressionSettings,
    forms=both_forms(cosine_regression) | {"bigdl": cosine_regression_in_bigdl},
)


class CosentSettings(ObjectiveSettings):
    """How similarities are compared."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides similarities before those of pairs are compared."
    )


def cosent(
    operations: Operations, sides: Sequence[Any], scores: Any, settings: CosentSettings
) -> Any:
    """Return how far pairs with a higher score have no higher cosine similarity (CoSENT).

    Compares every two pairs of a granule with different scores, by their order only.

    Source: Su, "CoSENT: A more efficient sentence vector scheme than Sentence-BERT", 2022,
    kexue.fm/archives/8847; the CoSENTLoss of sentence-transformers.
    """
    return _disorder(operations, operations.cosines(*sides), scores, settings)


def _disorder(
    operations: Operations, similarities: Any, scores: Any, settings: CosentSettings
) -> Any:
    """Return log(1 + sum of exp((s_i - s_j) / temperature)) over i with a lower score than j."""
    apart = (similarities[:, None] - similarities[None, :]) / settings.temperature
    return operations.log_one_plus(operations.chosen(apart, scores[:, None] < scores[None, :]))


COSENT = Loss(
    name="cosent",
    summary=("CoSENT: the cosine similarities of pairs have the order of their scores."),
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=CosentSettings,
    forms=both_forms(cosent),
)


class AngleSettings(CosentSettings):
    """How similarities are compared: as those of `cosent`."""


def angle(
    operations: Operations, sides: Sequence[Any], scores: Any, settings: AngleSettings
) -> Any:
    """Return the loss of :func:`cosent`, with a gradient that does not vanish at a cosine of 1.

    The halves of an embedding are the real and imaginary parts of complex numbers. The cosine is
    increased by the mean sine of the angle between the two texts' numbers.

    Source: Li and Li, "AnglE-optimized Text Embeddings", ACL 2024, arXiv:2309.12871, in the form of
    the AnglELoss of sentence-transformers.
    """
    (real, imaginary), (other_real, other_imaginary) = map(operations.halves, sides)
    turned = operations.cosines(real, other_real - other_imaginary)
    similarities = abs(turned + operations.cosines(imaginary, other_imaginary + other_real))
    return _disorder(operations, similarities, scores, settings)


ANGLE = Loss(
    name="angle",
    summary=("AnglE: as `cosent`, with a gradient that does not vanish at cosines of 1."),
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=AngleSettings,
    forms=both_forms(angle),
)


class ContrastiveSettings(ObjectiveSettings):
    """How far apart is far enough."""

    margin: float = Field(
        default=0.5,
        gt=0,
        le=2,
        description="Pairs of label 0 whose distance, 1 less the cosine, is more are left alone.",
    )


def contrastive(
    operations: Operations, sides: Sequence[Any], labels: Any, settings: ContrastiveSettings
) -> Any:
    """Return half the mean square of label 1's distance and of label 0's shortfall to the margin.

    The distance is 1 less the cosine. Source: Hadsell, Chopra and LeCun, "Dimensionality Reduction
    by Learning an Invariant Mapping", CVPR 2006; the ContrastiveLoss of sentence-transformers.
    """
    distance = 1 - operations.cosines(*sides)
    lacking = operations.relu(settings.margin - distance)
    return operations.mean(labels * distance**2 + (1 - labels) * lacking**2) / 2


CONTRASTIVE = Loss(
    name="contrastive",
    summary=("Label 1 draws a pair together. Label 0 pushes it apart up to a margin."),
    needs="scores",
    labels=True,
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=ContrastiveSettings,
    forms=both_forms(contrastive),
)


class OnlineContrastiveSettings(ContrastiveSettings):
    """How far apart is far enough: as in `contrastive`."""


def online_contrastive(
    operations: Operations, sides: Sequence[Any], labels: Any, settings: OnlineContrastiveSettings
) -> Any:
    """Return the sums of the terms of :func:`contrastive`, over hard pairs only.

    Hard are pairs of label 1 further apart than the nearest of label 0, and pairs of label 0 nearer
    than the furthest of label 1.

    Source: the OnlineContrastiveLoss of sentence-transformers; hard triplets are picked alike by
    Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017,
    arXiv:1703.07737.
    """
    distance = 1 - operations.cosines(*sides)
    alike, apart = (operations.chosen(distance, labels == label) for label in (1.0, 0.0))
    # Of one label alone, what is worse than the mean is hard.
    furthest = operations.largest(alike, operations.mean(apart))
    nearest = -operations.largest(-apart, -operations.mean(alike))
    hard = operations.chosen(alike, alike > nearest)
    lacking = operations.relu(settings.margin - operations.chosen(apart, apart < furthest))
    return operations.total(hard**2) + operations.total(lacking**2)


ONLINE_CONTRASTIVE = Loss(
    name="online_contrastive",
    summary="As `contrastive`, but only with the hard pairs of a granule.",
    needs="scores",
    labels=True,
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=OnlineContrastiveSettings,
    forms=both_forms(online_contrastive),
)
