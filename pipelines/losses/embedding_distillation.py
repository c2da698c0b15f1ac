"""The embeddings of a teacher, side by side with the model's own.

A model learns to put a text where a larger one puts it, from raw text alone: no pairs are needed.
The teacher's vectors come with the lanes, so it embeds each text once, and not in every step. Those
that are wider than the model's embeddings are reduced, see :mod:`pipelines.runs.run`.

Sources: Reimers and Gurevych, "Making Monolingual Sentence Embeddings Multilingual using Knowledge
Distillation", EMNLP 2020, arXiv:2004.09813; Kim et al., "EmbedDistill", 2023, arXiv:2301.12005; the
EmbedDistillLoss and MSELoss of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pipelines.errors import InputError
from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


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
        """Whether a teacher's vectors are projected to the width of the encoder's embeddings."""
        return self.reduction == "pca"

    def check_width(self, width: int, teacher: int | None = None) -> None:
        """Refuses a teacher whose vectors are narrower than what is to equal them, too."""
        super().check_width(width, teacher)
        if teacher is not None and teacher < width:
            raise InputError(
                "objective.name",
                f"the teacher's vectors have {teacher} numbers, the encoder's embeddings {width}",
                "set it to similarity_distillation, or take a wider teacher",
            )


def tensorflow(
    sides: Sequence[Any], teacher: Sequence[Any], settings: EmbeddingDistillationSettings
) -> Any:
    """The mean distance over texts and sides; a scalar tensor.

    Args:
        sides: Embeddings, [examples, width] each.
        teacher: The teacher's vectors of the same sides, of this width or wider: their first
            numbers count, scaled to length 1.
        settings: Name the distance.
    """
    import tensorflow as tf

    own = tf.concat(sides, 0)
    wanted = tf.math.l2_normalize(tf.concat(teacher, 0)[:, : tf.shape(own)[1]], axis=-1)
    if settings.distance == "mse":
        return tf.reduce_mean(tf.square(own - wanted))
    return 1 - tf.reduce_mean(tf.reduce_sum(own * wanted, axis=-1))


def torch(
    sides: Sequence[Any], teacher: Sequence[Any], settings: EmbeddingDistillationSettings
) -> Any:
    """The mean distance over texts and sides; see :func:`tensorflow`."""
    import torch
    from torch.nn.functional import mse_loss, normalize

    own = torch.cat(list(sides))
    wanted = normalize(torch.cat(list(teacher))[:, : own.shape[1]], dim=-1)
    if settings.distance == "mse":
        return mse_loss(own, wanted)
    return 1 - (own * wanted).sum(-1).mean()


LOSS = Loss(
    name="embedding_distillation",
    needs="teacher",
    sides=("anchor", "positive", "negative"),
    uses_negatives=False,
    settings=EmbeddingDistillationSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
