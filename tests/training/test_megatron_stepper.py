"""Workers that hold parts of an encoder by Megatron, against one process that holds all of it."""

from importlib.util import find_spec

import numpy as np
import pytest
from megatron_ranks import GRANULES, MIDDLE, STEPS, TRAINING, curve, spec_of, train_ranks
from steppers import stepper

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("megatron") is None, reason="Megatron-Core is not installed: make megatron"
    ),
]

LAYOUTS = {
    "tensor": {"workers": 2, "model_parallel": 2},
    "pipeline": {"workers": 2, "pipeline_parallel": 2},
    "replicas": {"workers": 4, "model_parallel": 2},
    "both": {"workers": 4, "model_parallel": 2, "pipeline_parallel": 2},
}
HARD = {"precision": "bf16", "dropout": 0.1, "activation_checkpointing": True}
WAYS = [
    ({}, {}, "bert"),
    ({"negatives": "step"}, {"dropout": 0.1, "clip_norm": 0.0}, "projected"),
    ({"negatives": "step"}, HARD, "bert"),
    ({}, {"dropout": 0.1}, "mpnet"),
]


def ways_of(layout: str) -> list:
    """All layers of an MPNet share a table, so it has no stages."""
    return [way for way in WAYS if way[2] != "mpnet" or "pipeline_parallel" not in LAYOUTS[layout]]


@pytest.fixture(scope="module", params=LAYOUTS)
def found(request, tmp_path_factory):
    """A layout, and what its workers make in each way: they are started once."""
    folder = tmp_path_factory.mktemp("ranks")
    return request.param, train_ranks(folder, LAYOUTS[request.param], ways_of(request.param))


def test_parts_make_the_updates_of_the_whole(found):
    layout, results = found
    for (objective, training, kind), result in zip(ways_of(layout), results, strict=True):
        spec = spec_of(kind)
        alone = stepper("torch", objective, TRAINING | training, spec=spec)
        expected = curve(alone, range(STEPS), 0, GRANULES)
        exact = "precision" not in training
        np.testing.assert_allclose(result["losses"], expected, rtol=1e-5 if exact else 1e-3)
        norm = alone.gradient_norm
        assert result["norm"] == pytest.approx(norm, rel=1e-4 if exact else 2e-2)
        np.testing.assert_allclose(
            result["again"], result["losses"][MIDDLE:], rtol=1e-6 if exact else 1e-3
        )
        if exact:
            last = alone.checkpoint(STEPS)
            assert_like(result["last"].weights, last.weights)
            assert_like(result["last"].moments, last.moments)


def assert_like(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        # Scores do not depend on it: its gradient is rounding alone, which AdamW takes for large.
        if not name.endswith("attention.self.key.bias"):
            np.testing.assert_allclose(arrays[name], array, rtol=1e-3, atol=2e-5, err_msg=name)


def test_one_process_goes_on_from_the_checkpoint_of_several(found):
    layout, (result, *_) = found
    objective, training, kind = ways_of(layout)[0]
    alone = stepper(
        "torch", objective, TRAINING | training, checkpoint=result["middle"], spec=spec_of(kind)
    )
    again = curve(alone, range(MIDDLE, STEPS), 0, GRANULES)
    np.testing.assert_allclose(again, result["losses"][MIDDLE:], rtol=1e-5)
