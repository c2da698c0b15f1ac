"""A teacher's choice among an example's candidates: its positive and its hard negatives.

The Kullback-Leibler divergence of the softmax of the model's similarities from that of the
teacher's scores, which come from the corpus: a cross-encoder is asked once, and not in every step.

Source: Lin et al., "In-Batch Negatives for Knowledge Distillation with Tightly-Coupled Teachers for
Dense Retrieval", RepL4NLP 2021; the DistillKLDivLoss of sentence-transformers, which multiplies it
by the square of the model's temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class ListwiseKlSettings(ObjectiveSettings):
    """How similarities and scores become shares."""

    temperature: float = Field(
        default=0.05, gt=0, description="Divides cosine similarities before the softmax."
    )
    teacher_temperature: float = Field(
        default=1.0, gt=0, description="Divides the teacher's scores before theirs."
    )


def tensorflow(sides: Sequence[Any], scores: Any, settings: ListwiseKlSettings) -> Any:
    """The mean divergence of the examples; a scalar tensor.

    Args:
        sides: Anchors, positives, and each side of hard negatives.
        scores: [examples, 1 + negatives], the teacher's.
        settings: Give the temperatures.
    """
    import tensorflow as tf

    anchor, *candidates = sides
    similarities = [tf.reduce_sum(anchor * candidate, axis=-1) for candidate in candidates]
    own = tf.nn.log_softmax(tf.stack(similarities, 1) / settings.temperature)
    teacher = tf.nn.log_softmax(scores / settings.teacher_temperature)
    return tf.reduce_mean(tf.reduce_sum(tf.exp(teacher) * (teacher - own), axis=1))


def torch(sides: Sequence[Any], scores: Any, settings: ListwiseKlSettings) -> Any:
    """The mean divergence of the examples; see :func:`tensorflow`."""
    import torch
    from torch.nn.functional import kl_div

    anchor, *candidates = sides
    similarities = [(anchor * candidate).sum(-1) for candidate in candidates]
    own = torch.log_softmax(torch.stack(similarities, 1) / settings.temperature, 1)
    teacher = torch.log_softmax(scores / settings.teacher_temperature, 1)
    return kl_div(own, teacher, reduction="batchmean", log_target=True)


LOSS = Loss(
    name="listwise_kl",
    needs="candidate_scores",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=ListwiseKlSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
