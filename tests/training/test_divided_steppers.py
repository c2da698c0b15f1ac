"""Workers that hold the encoder together, against one process that holds all of it."""

from functools import cache

import numpy as np
import pytest
from rank_pair import GRANULES, MIDDLE, STEPS, TRAINING, curve, train_ranks
from steppers import KINDS, stepper

pytestmark = pytest.mark.slow

TENSOR = ("torch-tensor", {"model_parallel": 2})
REPLICAS_FSDP = ("torch-tensor-fsdp", {"sharding": "parameters"})
TENSOR_FSDP = ("torch-tensor-fsdp", {"model_parallel": 2, "sharding": "parameters"})
PIPELINE = ("torch-pipeline", {"pipeline_parallel": 2})
BOTH = ("torch-pipeline", {"model_parallel": 2, "pipeline_parallel": 2})
DEEPSPEED = ("deepspeed-pipeline", {"pipeline_parallel": 2, "sharding": "optimizer"})
NOISY = {"dropout": 0.1, "activation_checkpointing": True}
CHECKPOINTED = {"activation_checkpointing": True}
STEP = {"negatives": "step"}

DEEP = "deep"
WAYS = {
    "two": [
        (TENSOR, STEP, NOISY | {"precision": "bf16"}),
        (TENSOR, {}, NOISY | {"tokens_per_micro_batch": 24, "ema": 0.9}),
        (TENSOR, STEP, CHECKPOINTED, "qwen3"),
        (TENSOR_FSDP, {}, NOISY),
        (REPLICAS_FSDP, STEP, NOISY),
        (PIPELINE, STEP, NOISY | {"precision": "bf16"}),
        (PIPELINE, STEP, {"ema": 0.9, "dropout": 0.1}),
        (DEEPSPEED, {}, NOISY),
    ],
    "two, combined": [
        (TENSOR, {}, {}),
        (TENSOR_FSDP, {}, CHECKPOINTED, "qwen3"),
        (PIPELINE, {}, {}),
    ],
    "four": [
        (TENSOR, STEP, NOISY),
        (TENSOR_FSDP, {}, NOISY, "mpnet"),
        (TENSOR_FSDP, STEP, CHECKPOINTED, "qwen3"),
        (TENSOR_FSDP, STEP, NOISY | {"precision": "bf16"}, "projected"),
        (TENSOR_FSDP, STEP, {"offload": "disk", "tokens_per_micro_batch": 24}),
        (("torch-pipeline", {"pipeline_parallel": 4}), {}, NOISY),
        (BOTH, STEP, NOISY),
        (DEEPSPEED, {}, {}),
    ],
}
MATRIX = pytest.mark.matrix
CASES = [
    pytest.param(group, number, marks=() if group == "two" else MATRIX)
    for group, ways in WAYS.items()
    for number in range(len(ways))
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What workers make, in each way of a group, for which they are started once."""

    @cache
    def by(group):
        ways = [
            (key, loss, layout | more, *(kind or [DEEP]))
            for (key, layout), loss, more, *kind in WAYS[group]
        ]
        return train_ranks(tmp_path_factory.mktemp("ranks"), ways, 4 if group == "four" else 2)

    return by


@pytest.mark.parametrize(("group", "number"), CASES, ids=str)
def test_parts_make_the_updates_of_the_whole(found, group, number):
    _, objective, training, *kind = WAYS[group][number]
    result, spec = found(group)[number], KINDS[kind[0] if kind else DEEP]
    alone = stepper("torch", objective, TRAINING | {"workers": 1} | training, spec=spec)
    expected = curve(alone, range(STEPS), 0, GRANULES)
    exact = "precision" not in training
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-5 if exact else 1e-3)
    assert result["norm"] == pytest.approx(alone.gradient_norm, rel=1e-4 if exact else 2e-2)
    again = result["losses"][MIDDLE:]
    np.testing.assert_allclose(result["again"], again, rtol=1e-6 if exact else 1e-3)
    last = alone.checkpoint(STEPS)
    assert result["last"].weights.keys() == last.weights.keys()
    assert result["last"].moments.keys() == last.moments.keys()
    for name, array in last.weights.items():
        atol = 1e-5 if exact else 1e-2
        np.testing.assert_allclose(result["last"].weights[name], array, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("group", "number"),
    [("two", 6), *(pytest.param("four", way, marks=MATRIX) for way in (4, 6))],
)
def test_one_process_goes_on_from_their_checkpoint(found, group, number):
    _, objective, training = WAYS[group][number]
    last = found(group)[number]["last"]
    whole = stepper("torch", objective, TRAINING | {"workers": 1} | training, spec=KINDS[DEEP])
    curve(whole, range(STEPS), 0, GRANULES)
    resumed = stepper(
        "torch", objective, TRAINING | {"workers": 1} | training, checkpoint=last, spec=KINDS[DEEP]
    )
    steps = range(STEPS, STEPS + 2)
    np.testing.assert_allclose(
        curve(resumed, steps, 0, GRANULES), curve(whole, steps, 0, GRANULES), rtol=1e-5
    )
