"""Squared error between the cosine similarity of a pair and its score.

Source: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019, arXiv:1908.10084, section 3.
"""

from __future__ import annotations

from typing import Any


def tensorflow(left: Any, right: Any, scores: Any, temperature: float) -> Any:
    """The mean squared error; a scalar tensor."""
    import tensorflow as tf

    left = tf.math.l2_normalize(left, axis=-1)
    right = tf.math.l2_normalize(right, axis=-1)
    cosine = tf.reduce_sum(left * right, axis=-1)
    return tf.reduce_mean(tf.square(cosine - scores))
