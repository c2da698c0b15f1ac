"""AdamW over numpy arrays, as PyTorch has it."""

import numpy as np
import pytest

from pipelines.training.steppers.adamw import AdamW


@pytest.mark.parametrize("resumed_at", [None, 3])
def test_it_makes_the_updates_of_pytorch(resumed_at):
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(5)
    weights = {
        "matrix": generator.normal(size=(300, 400)).astype(np.float32),
        "bias": generator.normal(size=7).astype(np.float32),
    }
    tensors = {name: torch.tensor(value) for name, value in weights.items()}
    theirs = torch.optim.AdamW(
        [
            {"params": [tensors["matrix"]], "weight_decay": 0.1},
            {"params": [tensors["bias"]], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    ours = AdamW(weights, {}, weight_decay=0.1)
    for number in range(1, 7):
        gradients = {
            name: generator.normal(size=value.shape).astype(np.float32)
            for name, value in weights.items()
        }
        if number == resumed_at:
            ours = AdamW(ours.weights, ours.moments, weight_decay=0.1)
        ours.update(gradients, 0.01, number)
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradients[name])
        theirs.step()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(ours.weights[name], tensor.numpy(), rtol=2e-5, atol=2e-6)


def test_what_it_was_given_stays_as_it_is():
    weights = {"bias": np.ones(3, np.float32)}
    AdamW(weights, {}, 0.0).update({"bias": np.ones(3, np.float32)}, 0.1, 1)
    assert weights["bias"].tolist() == [1, 1, 1]
