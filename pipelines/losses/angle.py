"""AnglE: as :mod:`.cosent`, with similarities whose gradient does not vanish where cosines are 1.

The two halves of an embedding are real and imaginary parts of complex numbers. Added to the cosine
is the sine of the angle between the two texts' numbers, in the mean.

Source: Li and Li, "AnglE-optimized Text Embeddings", ACL 2024, arXiv:2309.12871, in the form of the
AnglELoss of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.losses.cosent import CosentSettings, order_in_tensorflow, order_in_torch
from pipelines.losses.loss import Loss


class AngleSettings(CosentSettings):
    """How similarities are compared: as those of `cosent`."""


def tensorflow(sides: Sequence[Any], scores: Any, settings: AngleSettings) -> Any:
    """The loss of the order of the similarities; a scalar tensor."""
    import tensorflow as tf

    # A width that is odd has a zero for its last imaginary part.
    odd = tf.shape(sides[0])[1] % 2
    anchor, positive = (tf.pad(side, [[0, 0], [0, odd]]) for side in sides)
    turned = tf.roll(positive, tf.shape(positive)[1] // 2, 1)
    half = tf.shape(positive)[1] // 2
    signs = tf.concat([-tf.ones([half]), tf.ones([half])], 0)
    similarities = tf.abs(tf.reduce_sum(anchor * (positive + turned * signs), axis=-1))
    return order_in_tensorflow(similarities, scores, settings.temperature)


def torch(sides: Sequence[Any], scores: Any, settings: AngleSettings) -> Any:
    """The loss of the order of the similarities; a scalar tensor."""
    import torch
    from torch.nn.functional import pad

    # A width that is odd has a zero for its last imaginary part.
    anchor, positive = (pad(side, (0, side.shape[1] % 2)) for side in sides)
    real, imaginary = positive.chunk(2, 1)
    similarities = (anchor * (positive + torch.cat([-imaginary, real], 1))).sum(-1).abs()
    return order_in_torch(similarities, scores, settings.temperature)


LOSS = Loss(
    name="angle",
    needs="scores",
    sides=("anchor", "positive"),
    uses_negatives=True,
    settings=AngleSettings,
    forms={"tensorflow": tensorflow, "torch": torch},
)
