"""InfoNCE over cosine similarities: each anchor picks its positive among all of them.

Hard negatives are more texts to pick from: each anchor sees those of all examples. Left out are
false negatives, see :mod:`.candidates`.

Source: van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive
Coding", 2018, arXiv:1807.03748; the hard negatives as in the MultipleNegativesRankingLoss of
sentence-transformers, after Henderson et al., 2017, arXiv:1705.00652.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings

if TYPE_CHECKING:
    from pipelines.losses.candidates import Picks


class InBatchNegativesSettings(ObjectiveSettings):
    """How similarities are compared, and with what."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides cosine similarities before the softmax."
    )
    negatives: Literal["granule", "step"] = Field(
        default="granule", description="Where negatives come from: the granule, or the whole step."
    )


def tensorflow(sides: Sequence[Any], picks: Picks, settings: InBatchNegativesSettings) -> Any:
    """The mean cross-entropy of picking the positive; a scalar tensor."""
    import tensorflow as tf

    anchor, *candidates = sides
    # Scaling the anchors costs [examples, width] divisions, not one for each similarity.
    scaled = anchor / settings.temperature
    similarity = tf.matmul(scaled, tf.concat(candidates, 0), transpose_b=True)
    never = tf.fill(tf.shape(picks.excluded)[:1], -float("inf"))
    similarity = tf.tensor_scatter_nd_update(similarity, picks.excluded, never)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=picks.own, logits=similarity)
    return tf.reduce_mean(losses)


def torch(sides: Sequence[Any], picks: Picks, settings: InBatchNegativesSettings) -> Any:
    """The mean cross-entropy of picking the positive; a scalar tensor."""
    import torch
    from torch.nn.functional import cross_entropy

    anchor, *candidates = sides
    # Nothing is joined that is one already: these may be the texts of a whole step.
    texts = torch.cat(candidates) if len(candidates) > 1 else candidates[0]
    similarity = anchor / settings.temperature @ texts.T
    if len(picks.excluded):
        similarity[picks.excluded[:, 0], picks.excluded[:, 1]] = -float("inf")
    return cross_entropy(similarity, picks.own)


def bigdl(
    sides: Sequence[Any], examples: int, settings: InBatchNegativesSettings
) -> tuple[Any, Any]:
    """The similarities to pick from, and dllib's mean cross-entropy of picking the positive.

    Args:
        sides: Nodes of a graph: [granules, examples, width] each, of length 1.
        examples: Of a granule.
        settings: Give the temperature.

    Returns:
        A node [granules x examples, candidates], and the criterion that compares it with the
        number of each example's own text, from 1. What an example does not see is excluded in
        between, by the class `GranuleLosses` of :mod:`pipelines.jvm`.
    """
    from bigdl.dllib.nn import criterion, layer

    anchor, *candidates = sides
    texts = layer.JoinTable(2, 3)(candidates) if len(candidates) > 1 else candidates[0]
    similarity = layer.MM(trans_a=False, trans_b=True)([anchor, texts])
    scaled = layer.MulConstant(1 / settings.temperature)(similarity)
    rows = layer.InferReshape([-1, len(candidates) * examples])(scaled)
    return rows, criterion.CrossEntropyCriterion()


LOSS = Loss(
    name="in_batch_negatives",
    needs="pairs",
    sides=("anchor", "positive", "negative"),
    uses_negatives=True,
    settings=InBatchNegativesSettings,
    forms={"tensorflow": tensorflow, "torch": torch, "bigdl": bigdl},
)
