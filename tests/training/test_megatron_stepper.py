"""Workers that hold parts of an encoder by Megatron, against one process that holds all of it."""

from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
from rank_pair import GRANULES, MIDDLE, STEPS, TRAINING, curve, train_ranks
from steppers import KINDS, stepper

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("megatron") is None, reason="Megatron-Core is not installed: make megatron"
    ),
]

TENSOR = {"model_parallel": 2}
PIPELINE = {"pipeline_parallel": 2}
NOISY = {"dropout": 0.1, "activation_checkpointing": True}
STEP = {"negatives": "step"}

WAYS = {
    2: [
        (TENSOR, {}, {}, "deep"),
        (TENSOR, STEP, NOISY | {"precision": "bf16"}, "deep"),
        (TENSOR, {}, {"dropout": 0.1, "clip_norm": 0.0}, "mpnet"),
        (PIPELINE, {}, {}, "deep"),
        (PIPELINE, STEP, NOISY | {"precision": "bf16"}, "deep"),
        (PIPELINE, STEP, {"dropout": 0.1}, "projected"),
    ],
    4: [
        (TENSOR, STEP, NOISY, "projected"),
        # A vocabulary that four do not divide.
        ({"model_parallel": 4}, {}, NOISY, "deep"),
        (PIPELINE, STEP, NOISY, "deep"),
        ({"pipeline_parallel": 4}, {}, NOISY, "deep"),
        (TENSOR | PIPELINE, STEP, NOISY, "deep"),
    ],
}
CASES = [(workers, number) for workers, ways in WAYS.items() for number in range(len(ways))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What so many workers make, in each way: they are started once."""

    @cache
    def by(workers):
        ways = [
            ("megatron", loss, layout | more, kind) for layout, loss, more, kind in WAYS[workers]
        ]
        return train_ranks(tmp_path_factory.mktemp("ranks"), ways, workers)

    return by


def one_process(way, checkpoint=None):
    _, objective, training, kind = way
    settings = TRAINING | {"workers": 1} | training
    return stepper("torch", objective, settings, checkpoint=checkpoint, spec=KINDS[kind])


@pytest.mark.parametrize(("workers", "number"), CASES, ids=str)
def test_parts_make_the_updates_of_the_whole(made, workers, number):
    way, result = WAYS[workers][number], made(workers)[number]
    alone = one_process(way)
    expected = curve(alone, range(STEPS), 0, GRANULES)
    exact = "precision" not in way[2]
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-5 if exact else 1e-3)
    assert result["norm"] == pytest.approx(alone.gradient_norm, rel=1e-4 if exact else 2e-2)
    again = result["losses"][MIDDLE:]
    np.testing.assert_allclose(result["again"], again, rtol=1e-6 if exact else 1e-3)
    last = alone.checkpoint(STEPS)
    assert_like(result["last"].weights, last.weights, 2e-5 if exact else 1e-2)
    assert_like(result["last"].moments, last.moments, 2e-5 if exact else 1e-2)


def assert_like(arrays, expected, atol):
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        # Scores do not depend on it: its gradient is rounding alone, which AdamW takes for large.
        if not name.endswith("attention.self.key.bias"):
            np.testing.assert_allclose(arrays[name], array, rtol=1e-3, atol=atol, err_msg=name)


def test_one_process_goes_on_from_their_checkpoint(made):
    way, last = WAYS[4][4], made(4)[4]["last"]
    whole = one_process(way)
    curve(whole, range(STEPS), 0, GRANULES)
    steps = range(STEPS, STEPS + 2)
    np.testing.assert_allclose(
        curve(one_process(way, last), steps, 0, GRANULES),
        curve(whole, steps, 0, GRANULES),
        rtol=1e-5,
    )
