"""CoSENT: a pair with a higher score has a higher cosine similarity than one with a lower score.

Every two pairs of a granule whose scores differ are compared, and how the scores differ does not
count, only which is higher.

Source: Su, "CoSENT: A more efficient sentence vector scheme than Sentence-BERT", 2022,
kexue.fm/archives/8847; the CoSENTLoss of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class CosentSettings(ObjectiveSettings):
    """How similarities are compared."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides similarities before those of pairs are compared."
    )


def order_in_tensorflow(similarities: Any, scores: Any, temperature: float) -> Any:
    """log(1 + sum of exp((s_i - s_j) / temperature)) over all i with a lower score than j.

    Args:
        similarities: [pairs].
        scores: [pairs].
        temperature: Of the similarities.
    """
    import tensorflow as tf

    apart = (similarities[:, None] - similarities[None, :]) / temperature
    wrong = tf.boolean_mask(apart, scores[:, None] < scores[None, :])
    return tf.reduce_logsumexp(tf.concat([[0.0], wrong], 0))


def order_in_torch(similarities: Any, scores: Any, temperature: float) -> Any:
    """See :func:`order_in_tensorflow`."""
    import torch

    apart = (similarities[:, None] - similarities[None, :]) / temperature
    wrong = apart[scores[:, None] < scores[None, :]]
    return torch.logsumexp(torch.cat([wrong.new_zeros(1), wrong]), 0)


def tensorflow(sides: Sequence[Any], scores: Any, settings: CosentSettings) -> Any:
    """The loss of the order of cosine similarities; a scalar tensor."""
    import tensorflow as tf

    anchor, positive = sides
    return order_in_tensorflow(
        tf.reduce_sum(anchor * positive, axis=-1), scores, settings.temperature
    )


def torch(sides: Sequence[Any], scores: Any, settings: CosentSettings) -> Any:
    """The loss of the order of cosine similarities; a scalar tensor."""
    anchor, positive = sides
    return order_in_torch((anchor * positive).sum(-1), scores, settings.temperature)


LOSS = Loss(
    name="cosent",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=CosentSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
