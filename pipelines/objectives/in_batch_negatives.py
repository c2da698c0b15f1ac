"""InfoNCE over cosine similarities: each left text picks its right text among all of them.

Source: van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive
Coding", 2018, arXiv:1807.03748; with the same text on both sides under two dropout masks it is
the unsupervised SimCSE of Gao, Yao and Chen, EMNLP 2021, arXiv:2104.08821.
"""

from __future__ import annotations

from typing import Any


def tensorflow(left: Any, right: Any, scores: Any, temperature: float) -> Any:
    """The mean cross-entropy of picking the right text; a scalar tensor."""
    import tensorflow as tf

    left = tf.math.l2_normalize(left, axis=-1)
    right = tf.math.l2_normalize(right, axis=-1)
    similarity = tf.matmul(left, right, transpose_b=True) / temperature
    own = tf.linalg.diag_part(similarity)
    return tf.reduce_mean(tf.reduce_logsumexp(similarity, axis=-1) - own)
