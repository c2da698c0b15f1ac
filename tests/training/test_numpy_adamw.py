"""AdamW as PyTorch has it: over numpy arrays, and TensorFlow's."""

import numpy as np
import psutil
import pytest
import torch
from steppers import SPEC, stepper

from pipelines.models.weights import random_weights
from pipelines.training.steppers.numpy_adamw import AdamW

DECAY = 0.1


class Theirs:
    """PyTorch's optimiser of some arrays."""

    def __init__(self, weights):
        self.weights = {name: torch.tensor(value) for name, value in weights.items()}
        groups = (([], DECAY), ([], 0.0))
        for value in self.weights.values():
            groups[value.ndim == 1][0].append(value)
        self._optimiser = torch.optim.AdamW(
            [{"params": values, "weight_decay": decay} for values, decay in groups]
        )

    def update(self, gradients, rate):
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        for name, value in self.weights.items():
            value.grad = torch.tensor(gradients[name])
        self._optimiser.step()


def steps(weights):
    """Gradients and the rate of a few steps."""
    generator = np.random.default_rng(5)
    for rate in (1e-2, 5e-3, 2e-3, 1e-2, 1e-2, 1e-3):
        yield (
            {
                name: generator.normal(size=value.shape).astype(np.float32)
                for name, value in weights.items()
            },
            rate,
        )


@pytest.mark.parametrize("resumed_at", [None, 3])
def test_it_makes_the_updates_of_pytorch(resumed_at):
    generator = np.random.default_rng(5)
    weights = {
        "matrix": generator.normal(size=(300, 400)).astype(np.float32),
        "bias": generator.normal(size=7).astype(np.float32),
    }
    theirs, ours = Theirs(weights), AdamW(weights, {}, DECAY)
    for number, (gradients, rate) in enumerate(steps(weights), 1):
        if number == resumed_at:
            ours = AdamW(ours.weights, ours.moments, DECAY)
        ours.update(gradients, rate, number)
        theirs.update(gradients, rate)
    for name, tensor in theirs.weights.items():
        np.testing.assert_allclose(ours.weights[name], tensor.numpy(), rtol=2e-5, atol=2e-6)


def test_what_it_was_given_stays_as_it_is():
    weights = {"bias": np.ones(3, np.float32)}
    AdamW(weights, {}, 0.0).update({"bias": np.ones(3, np.float32)}, 0.1, 1)
    assert weights["bias"].tolist() == [1, 1, 1]


@pytest.mark.slow
def test_tensorflows_update_is_pytorchs():
    import tensorflow as tf

    weights = random_weights(SPEC, 3)
    ours = stepper("tensorflow", training={"weight_decay": DECAY, "clip_norm": 0.0})
    theirs = Theirs(weights)
    for number, (gradients, rate) in enumerate(steps(weights), 1):
        scalars = [1.0, rate, 0.9**number, 0.999**number, 1.0]
        loss, *rest = [tf.constant(value, tf.float32) for value in scalars]
        ours._update([tf.constant(value) for value in gradients.values()], loss, *rest)
        theirs.update(gradients, rate)
    for name, value in ours.checkpoint(6).weights.items():
        np.testing.assert_allclose(value, theirs.weights[name].numpy(), atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_the_numbers_of_a_step_of_tensorflow_do_not_outlive_it():
    from pipelines.training.steppers.tensorflow import _scalar

    process, count = psutil.Process(), 40_000
    for step in range(1000):
        assert _scalar(1 / (step + 1)).numpy() == np.float32(1 / (step + 1))
    before = process.memory_full_info().uss
    for step in range(count):
        _scalar(1 / (step + 1001))
    # As Python's numbers they would be kept, 560 bytes each.
    assert process.memory_full_info().uss - before < 100 * count
