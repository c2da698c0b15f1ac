"""Squared error between the cosine similarity of a pair and its score.

Source: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019, arXiv:1908.10084, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def tensorflow(sides: Sequence[Any], scores: Any, temperature: float) -> Any:
    """The mean squared error; a scalar tensor."""
    import tensorflow as tf

    left, right = (tf.math.l2_normalize(side, axis=-1) for side in sides)
    cosine = tf.reduce_sum(left * right, axis=-1)
    return tf.reduce_mean(tf.square(cosine - scores))


def torch(sides: Sequence[Any], scores: Any, temperature: float) -> Any:
    """The mean squared error; a scalar tensor."""
    from torch.nn.functional import mse_loss, normalize

    left, right = (normalize(side, dim=-1) for side in sides)
    return mse_loss((left * right).sum(-1), scores)
