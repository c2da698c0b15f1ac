"""AdamW over numpy arrays, for a parameter server without a framework.

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
arXiv:1711.05101. Biases and layer norms do not decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from pipelines.models.weights import Weights

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
# Elements of an update, few enough for intermediate results in the processor's cache.
_BLOCK = 1 << 16


def newest_share(decay: float, number: int) -> float:
    """Return the share of the newest weights in an exponential moving average of all.

    A young average follows faster, so the start does not dominate a short run; source:
    `tf.train.ExponentialMovingAverage` with `num_updates`. `decay` is the share of the average so
    far in the long run; `number` counts updates from 1.
    """
    return 1 - min(decay, (1 + number) / (10 + number))


class AdamW:
    """Updates arrays in place; see :class:`pipelines.runs.checkpoint.Checkpoint`.

    Copies the fp32 `weights` and the `moments`, ``m/NAME`` and ``v/NAME``, or none for a fresh
    optimiser. Weight decay is decoupled.
    """

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        moments: Mapping[str, np.ndarray],
        weight_decay: float,
    ) -> None:
        # In the order of C, so that `reshape(-1)` gives a view.
        self.weights = {
            name: np.array(value, np.float32, order="C") for name, value in weights.items()
        }
        self.moments = {
            f"{kind}/{name}": np.array(
                moments.get(f"{kind}/{name}", np.zeros_like(value)), np.float32, order="C"
            )
            for kind in ("m", "v")
            for name, value in weights.items()
        }
        self._weight_decay = weight_decay

    def update(self, gradients: Weights, learning_rate: float, number: int) -> None:
        """Make update `number`, from 1; the number corrects the moments' bias.

        The gradients are fp32, of the weights' shapes.
        """
        scale = learning_rate / (1 - BETA_1**number)
        correction = 1 / math.sqrt(1 - BETA_2**number)
        for name, gradient in gradients.items():
            weight, flat = self.weights[name], gradient.reshape(-1)
            arrays = weight, self.moments[f"m/{name}"], self.moments[f"v/{name}"]
            kept = 1 - learning_rate * (self._weight_decay if weight.ndim > 1 else 0.0)
            for start in range(0, len(flat), _BLOCK):
                block = slice(start, start + _BLOCK)
                values, first, second = (array.reshape(-1)[block] for array in arrays)
                first += (1 - BETA_1) * (flat[block] - first)
                second += (1 - BETA_2) * (flat[block] ** 2 - second)
                values *= kept
                values -= scale * first / (np.sqrt(second) * correction + EPSILON)
