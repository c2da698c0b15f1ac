"""InfoNCE over cosine similarities: each left text picks its right text among all of them.

Hard negatives are more texts to pick from: each left text sees those of all examples.

Source: van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive
Coding", 2018, arXiv:1807.03748; the hard negatives as in the MultipleNegativesRankingLoss of
sentence-transformers, after Henderson et al., 2017, arXiv:1705.00652; with the same text on both
sides under two dropout masks it is the unsupervised SimCSE of Gao, Yao and Chen, EMNLP 2021,
arXiv:2104.08821.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def tensorflow(sides: Sequence[Any], scores: Any, temperature: float) -> Any:
    """The mean cross-entropy of picking the right text; a scalar tensor."""
    import tensorflow as tf

    left, *candidates = (tf.math.l2_normalize(side, axis=-1) for side in sides)
    similarity = tf.matmul(left, tf.concat(candidates, 0), transpose_b=True) / temperature
    # The right texts come first, so that the diagonal is each left text's own.
    own = tf.linalg.diag_part(similarity)
    return tf.reduce_mean(tf.reduce_logsumexp(similarity, axis=-1) - own)


def torch(sides: Sequence[Any], scores: Any, temperature: float) -> Any:
    """The mean cross-entropy of picking the right text; a scalar tensor."""
    import torch
    from torch.nn.functional import cross_entropy, normalize

    left, *candidates = (normalize(side, dim=-1) for side in sides)
    similarity = left @ torch.cat(candidates).T / temperature
    # The right texts come first.
    return cross_entropy(similarity, torch.arange(len(left), device=left.device))


def bigdl(sides: Sequence[Any], examples: int, temperature: float) -> tuple[Any, Any]:
    """The similarities to pick from, and dllib's mean cross-entropy of picking the right text.

    Args:
        sides: Nodes of a graph: [granules, examples, width] each, of length 1.
        examples: Of a granule.
        temperature: Divides cosine similarities.

    Returns:
        A node [granules x examples, candidates], and the criterion that compares it with the
        number of each example's own text, from 1: its place in the granule.
    """
    from bigdl.dllib.nn import criterion, layer

    left, *candidates = sides
    texts = layer.JoinTable(2, 3)(candidates) if len(candidates) > 1 else candidates[0]
    similarity = layer.MM(trans_a=False, trans_b=True)([left, texts])
    scaled = layer.MulConstant(1 / temperature)(similarity)
    rows = layer.InferReshape([-1, len(candidates) * examples])(scaled)
    return rows, criterion.CrossEntropyCriterion()
