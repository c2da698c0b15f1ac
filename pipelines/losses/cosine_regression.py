"""Squared error between the cosine similarity of a pair and its score.

Source: Reimers and Gurevych, "Sentence-BERT", EMNLP 2019, arXiv:1908.10084, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.losses.loss import Loss
from pipelines.settings.objective import ObjectiveSettings


class CosineRegressionSettings(ObjectiveSettings):
    """None: the scores say how similar two texts are."""


def tensorflow(sides: Sequence[Any], scores: Any, settings: CosineRegressionSettings) -> Any:
    """The mean squared error; a scalar tensor."""
    import tensorflow as tf

    anchor, positive = sides
    cosine = tf.reduce_sum(anchor * positive, axis=-1)
    return tf.reduce_mean(tf.square(cosine - scores))


def torch(sides: Sequence[Any], scores: Any, settings: CosineRegressionSettings) -> Any:
    """The mean squared error; a scalar tensor."""
    from torch.nn.functional import mse_loss

    anchor, positive = sides
    return mse_loss((anchor * positive).sum(-1), scores)


def bigdl(
    sides: Sequence[Any], examples: int, settings: CosineRegressionSettings
) -> tuple[Any, Any]:
    """The cosine similarities, and dllib's mean squared error to the scores.

    Args:
        sides: Nodes of a graph: [granules, examples, width] each, of length 1.
        examples: Of a granule.
        settings: Not used.

    Returns:
        A node [granules x examples], and the criterion that compares it with the scores.
    """
    from bigdl.dllib.nn import criterion, layer

    product = layer.CMulTable()(list(sides))
    # Of the class's two last arguments each sets the other: this is a sum, not a mean.
    cosine = layer.Sum(3, squeeze=False, size_average=True)(product)
    return layer.InferReshape([-1])(cosine), criterion.MSECriterion()


LOSS = Loss(
    name="cosine_regression",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=False,
    settings=CosineRegressionSettings,
    forms={"tensorflow": tensorflow, "torch": torch, "bigdl": bigdl},
)
