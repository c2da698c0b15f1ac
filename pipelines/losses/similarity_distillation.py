"""The similarities that a teacher sees among the texts of a granule.

All texts of a granule are compared with one another, by the model and by the teacher, and the
cosines are to be the same. So the teacher's vectors may have any width.

Source: Tung and Mori, "Similarity-Preserving Knowledge Distillation", ICCV 2019, arXiv:1907.09682,
with cosines in place of their scaled products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class SimilarityDistillationSettings(ObjectiveSettings):
    """None: the teacher says how similar texts are."""


def tensorflow(
    sides: Sequence[Any], teacher: Sequence[Any], settings: SimilarityDistillationSettings
) -> Any:
    """The mean squared difference of the cosines of two texts; a scalar tensor.

    Args:
        sides: Embeddings, [examples, width] each.
        teacher: The teacher's vectors of the same sides, of any width and of length 1.
        settings: Not used.
    """
    import tensorflow as tf

    own, wanted = tf.concat(sides, 0), tf.concat(teacher, 0)
    apart = tf.matmul(own, own, transpose_b=True) - tf.matmul(wanted, wanted, transpose_b=True)
    texts = tf.cast(tf.shape(own)[0], tf.float32)
    # A text's cosine with itself is 1 for both.
    return tf.reduce_sum(tf.square(apart)) / (texts * (texts - 1))


def torch(
    sides: Sequence[Any], teacher: Sequence[Any], settings: SimilarityDistillationSettings
) -> Any:
    """The mean squared difference of the cosines of two texts; see :func:`tensorflow`."""
    import torch

    own, wanted = torch.cat(list(sides)), torch.cat(list(teacher))
    apart = own @ own.T - wanted @ wanted.T
    # A text's cosine with itself is 1 for both.
    return apart.square().sum() / (len(own) * (len(own) - 1))


LOSS = Loss(
    name="similarity_distillation",
    needs="teacher",
    sides=("anchor", "positive", "negative"),
    uses_negatives=True,
    settings=SimilarityDistillationSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
