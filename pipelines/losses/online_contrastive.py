"""As :mod:`.contrastive`, of the hard pairs of a granule only.

Hard are the pairs of label 1 that are further apart than the nearest of label 0, and those of
label 0 that are nearer than the furthest of label 1.

Source: the OnlineContrastiveLoss of sentence-transformers; hard triplets are picked alike by
Hermans, Beyer and Leibe, "In Defense of the Triplet Loss for Person Re-Identification", 2017,
arXiv:1703.07737.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.losses.contrastive import ContrastiveSettings
from pipelines.losses.loss import Loss


class OnlineContrastiveSettings(ContrastiveSettings):
    """How far apart is far enough: as in `contrastive`."""


def tensorflow(sides: Sequence[Any], labels: Any, settings: OnlineContrastiveSettings) -> Any:
    """The sum of the squared distances, or of what is lacking to the margin; a scalar tensor."""
    import tensorflow as tf

    anchor, positive = sides
    distance = 1 - tf.reduce_sum(anchor * positive, axis=-1)
    alike, apart = (tf.boolean_mask(distance, labels == label) for label in (1.0, 0.0))
    # Of one label alone, what is worse than the mean is hard.
    furthest = tf.where(tf.size(alike) > 0, tf.reduce_max(alike), tf.reduce_mean(apart))
    nearest = tf.where(tf.size(apart) > 0, tf.reduce_min(apart), tf.reduce_mean(alike))
    hard = tf.boolean_mask(alike, alike > nearest)
    lacking = tf.nn.relu(settings.margin - tf.boolean_mask(apart, apart < furthest))
    return tf.reduce_sum(hard**2) + tf.reduce_sum(lacking**2)


def torch(sides: Sequence[Any], labels: Any, settings: OnlineContrastiveSettings) -> Any:
    """The sum of the squared distances, or of what is lacking to the margin; a scalar tensor."""
    import torch

    anchor, positive = sides
    distance = 1 - (anchor * positive).sum(-1)
    alike, apart = distance[labels == 1], distance[labels == 0]
    # Of one label alone, what is worse than the mean is hard.
    furthest = alike.max() if len(alike) else apart.mean()
    nearest = apart.min() if len(apart) else alike.mean()
    lacking = torch.relu(settings.margin - apart[apart < furthest])
    return (alike[alike > nearest] ** 2).sum() + (lacking**2).sum()


LOSS = Loss(
    name="online_contrastive",
    needs="scores",
    labels=True,
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=OnlineContrastiveSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
