"""TensorFlow's update: AdamW as PyTorch has it."""

import numpy as np
import psutil
import pytest
from steppers import SPEC, stepper

from pipelines.models.weights import random_weights

pytestmark = pytest.mark.slow


def test_the_update_is_pytorchs_adamw():
    import tensorflow as tf
    import torch

    ours = stepper("tensorflow", training={"weight_decay": 0.1, "clip_norm": 0.0})
    weights = {name: torch.tensor(value) for name, value in random_weights(SPEC, 3).items()}
    decayed = [value for value in weights.values() if value.ndim > 1]
    rest = [value for value in weights.values() if value.ndim == 1]
    theirs = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    )
    generator = np.random.default_rng(1)
    for index, rate in enumerate([1e-2, 5e-3, 2e-3]):
        gradients = [generator.normal(size=v.shape).astype(np.float32) for v in weights.values()]
        scalars = [1.0, rate, 0.9 ** (index + 1), 0.999 ** (index + 1), 1.0]
        loss, *rest_of_them = [tf.constant(value, tf.float32) for value in scalars]
        ours._update([tf.constant(value) for value in gradients], loss, *rest_of_them)
        for group in theirs.param_groups:
            group["lr"] = rate
        for value, gradient in zip(weights.values(), gradients, strict=True):
            value.grad = torch.tensor(gradient)
        theirs.step()
    for name, value in ours.checkpoint(3).weights.items():
        np.testing.assert_allclose(value, weights[name].numpy(), atol=2e-6, err_msg=name)


def test_the_numbers_of_a_step_do_not_outlive_it():
    from pipelines.training.steppers.tensorflow import _scalar

    process, steps = psutil.Process(), 40_000
    for step in range(1000):
        assert _scalar(1 / (step + 1)).numpy() == np.float32(1 / (step + 1))
    before = process.memory_full_info().uss
    for step in range(steps):
        _scalar(1 / (step + 1001))
    # As Python's numbers they would be kept, 560 bytes each.
    assert process.memory_full_info().uss - before < 100 * steps
