"""Workers that hold parts of the state, or the encoder together, against one process with all."""

from functools import cache

import pytest
from rank_pair import GRANULES, LORA, check_resumed, check_whole, one_process, train_ranks
from steppers import KINDS, SPEC

pytestmark = pytest.mark.slow

NOISY = {"dropout": 0.1, "activation_checkpointing": True}
CHECKPOINTED = {"activation_checkpointing": True}
HARD = NOISY | {"precision": "bf16"}
PARTS = {"tokens_per_forward": 24}
STEP = {"negatives": "step"}

OPTIMIZER = {"sharding": "optimizer"}
GRADIENTS = {"sharding": "gradients"}
PARAMETERS = {"sharding": "parameters"}
DISK = {"offload": "disk"}
MEMBERS = {"model_parallel": 2}
STAGES = {"pipeline_parallel": 2}
# Both members compute all granules of a step.
FEW = MEMBERS | {"granules_per_step": 2}

SHARDED = [
    ("torch", STEP, {"ema": 0.9}, "lora"),
    ("torch-fsdp", STEP, HARD),
    ("torch-fsdp", {}, DISK),
    ("torch-fsdp", STEP, CHECKPOINTED | PARTS, "hf"),
    ("torch-fsdp", {"name": "retromae"}, PARTS),
    ("deepspeed", {}, OPTIMIZER),
    ("deepspeed", STEP, PARAMETERS | HARD),
    ("deepspeed", {}, GRADIENTS | DISK | PARTS),
    ("deepspeed", {"name": "mlm"}, PARAMETERS | DISK),
]
RESUMED = ("torch-pipeline", STEP, STAGES | {"ema": 0.9, "dropout": 0.1}, "deep")
DIVIDED = [
    ("torch-tensor", STEP, FEW | HARD, "deep"),
    ("torch-tensor", STEP, FEW | CHECKPOINTED, "qwen3"),
    ("torch-tensor-fsdp", {}, FEW | PARAMETERS | NOISY, "deep"),
    RESUMED,
    ("deepspeed-pipeline", {}, STAGES | OPTIMIZER | NOISY, "deep"),
]
OF_MEMBERS = {way[0] for way in DIVIDED}
WAYS = {
    "two": [*SHARDED, *DIVIDED],
    "two, combined": [
        ("torch", {}, {}),
        ("torch", {"name": "tsdae"}, {"dropout": 0.1}),
        ("torch-fsdp", {}, {}, "static"),
        ("deepspeed", {}, PARAMETERS | CHECKPOINTED, "hf"),
        ("deepspeed", {}, PARAMETERS, "static"),
        ("torch-tensor", {}, FEW | PARTS | {"ema": 0.9, "dropout": 0.1}, "deep"),
        ("torch-tensor-fsdp", STEP, PARAMETERS | NOISY, "deep"),
        ("torch-pipeline", STEP, STAGES | HARD, "deep"),
        ("torch-fsdp", {}, {}),
        ("torch-fsdp", STEP, PARTS),
        ("torch-fsdp", {}, {}, "hf"),
        ("torch-fsdp", {}, {"dropout": 0.1}, "hf"),
        ("deepspeed", {}, GRADIENTS),
        ("deepspeed", {}, GRADIENTS | PARTS),
        ("deepspeed", {}, GRADIENTS | DISK),
        ("deepspeed", {}, PARAMETERS),
        ("deepspeed", {}, PARAMETERS | DISK),
        ("deepspeed", STEP, PARAMETERS | PARTS),
        ("deepspeed", {"name": "mlm"}, PARAMETERS),
        ("deepspeed", {"name": "tsdae"}, GRADIENTS),
        ("deepspeed", {}, OPTIMIZER, "static"),
        ("torch-fsdp", STEP, {"compile": True, "dropout": 0.1}, "deep"),
        ("deepspeed", {}, PARAMETERS | {"compile": True, "dropout": 0.1}),
        ("torch-tensor", {}, MEMBERS, "deep"),
        ("torch-tensor", {}, MEMBERS | NOISY | PARTS | {"ema": 0.9}, "deep"),
        ("torch-tensor-fsdp", {}, MEMBERS | PARAMETERS | CHECKPOINTED, "qwen3"),
        ("torch-pipeline", {}, STAGES, "deep"),
    ],
    "four": [
        ("torch-tensor", STEP, MEMBERS | NOISY, "deep"),
        ("torch-tensor-fsdp", {}, MEMBERS | PARAMETERS | NOISY, "mpnet"),
        ("torch-tensor-fsdp", STEP, MEMBERS | PARAMETERS | CHECKPOINTED, "qwen3"),
        ("torch-tensor-fsdp", STEP, MEMBERS | PARAMETERS | HARD, "projected"),
        ("torch-tensor-fsdp", STEP, MEMBERS | PARAMETERS | DISK | PARTS, "deep"),
        ("torch-pipeline", {}, {"pipeline_parallel": 4} | NOISY, "deep"),
        ("torch-pipeline", STEP, MEMBERS | STAGES | NOISY, "deep"),
        ("deepspeed-pipeline", {}, STAGES | OPTIMIZER, "deep"),
    ],
}
MATRIX = pytest.mark.matrix
CASES = [
    pytest.param(group, number, marks=() if group == "two" else MATRIX)
    for group, ways in WAYS.items()
    for number in range(len(ways))
]
ENCODERS = {"bert": (SPEC, {}), "lora": (SPEC, LORA)} | {
    kind: (spec, {}) for kind, spec in KINDS.items()
}


def parts_of(way) -> tuple:
    """The settings of one process, the encoder, and what is adapted of it."""
    _, objective, training, *kind = way
    alone = {
        key: value for key, value in training.items() if key not in {*MEMBERS, *STAGES, "compile"}
    }
    return objective, alone, *ENCODERS[kind[0] if kind else "bert"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What workers make, in each way of a group, for which they are started once."""

    @cache
    def by(group):
        count = 4 if group == "four" else 2
        return train_ranks(tmp_path_factory.mktemp("ranks"), WAYS[group], count)

    return by


@pytest.mark.parametrize(("group", "number"), CASES, ids=str)
def test_parts_make_the_updates_of_the_whole(found, group, number):
    way = WAYS[group][number]
    objective, training, spec, encoder = parts_of(way)
    exact = "precision" not in training
    # AdamW moves a weight of the smallest gradients by their rounding.
    arrays = exact or way[0] in OF_MEMBERS
    alone = one_process(objective, training, spec, encoder=encoder)
    granules = training.get("granules_per_step", GRANULES)
    result = found(group)[number]
    check_whole(result, alone, exact=exact, arrays=arrays, granules=granules)
    if way[0] == "torch-fsdp":
        whole = sum(array.size for array in result["last"].weights.values())
        assert whole / 2 <= result["held"] < 0.55 * whole


@pytest.mark.parametrize(
    ("group", "number"),
    [
        ("two", WAYS["two"].index(RESUMED)),
        *(pytest.param("four", way, marks=MATRIX) for way in (4, 6)),
    ],
)
def test_one_process_goes_on_from_their_checkpoint(found, group, number):
    objective, training, spec, _ = parts_of(WAYS[group][number])
    check_resumed(found(group)[number]["last"], (objective, training), spec)
