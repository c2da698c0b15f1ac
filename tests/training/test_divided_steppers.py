"""Workers that hold the encoder together, against one process that holds all of it."""

from functools import cache

import pytest
from rank_pair import check_resumed, check_whole, one_process, train_ranks
from steppers import KINDS

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
        (TENSOR, {}, NOISY | {"tokens_per_forward": 24, "ema": 0.9}),
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
        (TENSOR_FSDP, STEP, {"offload": "disk", "tokens_per_forward": 24}),
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
    alone = one_process(objective, training, KINDS[kind[0] if kind else DEEP])
    check_whole(found(group)[number], alone, exact="precision" not in training)


@pytest.mark.parametrize(
    ("group", "number"),
    [("two", 6), *(pytest.param("four", way, marks=MATRIX) for way in (4, 6))],
)
def test_one_process_goes_on_from_their_checkpoint(found, group, number):
    _, *way = WAYS[group][number]
    check_resumed(found(group)[number]["last"], way, KINDS[DEEP])
