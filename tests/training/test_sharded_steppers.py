"""Two workers that hold parts of the state, against one process that holds all of it."""

from functools import cache

import pytest
from rank_pair import LORA, check_whole, one_process, train_ranks
from steppers import HF, SPEC, STATIC

pytestmark = pytest.mark.slow

HARD = {"precision": "bf16", "dropout": 0.1, "activation_checkpointing": True}

PARTS = {"tokens_per_forward": 24}

WAYS = {
    "each": [
        ("torch", {}, {}),
        ("torch", {"negatives": "step"}, {"ema": 0.9}, "lora"),
        ("torch", {"name": "tsdae"}, {"dropout": 0.1}),
        ("torch-fsdp", {"negatives": "step"}, HARD),
        ("torch-fsdp", {}, {"offload": "disk"}),
        ("torch-fsdp", {"negatives": "step"}, {"activation_checkpointing": True} | PARTS, "hf"),
        ("torch-fsdp", {"name": "retromae"}, PARTS),
        ("torch-fsdp", {}, {}, "static"),
        ("deepspeed", {}, {"sharding": "optimizer"}),
        ("deepspeed", {"negatives": "step"}, {"sharding": "parameters"} | HARD),
        ("deepspeed", {}, {"sharding": "gradients"} | PARTS),
        ("deepspeed", {}, {"sharding": "gradients", "offload": "disk"}),
        ("deepspeed", {}, {"sharding": "parameters", "offload": "disk"}),
        ("deepspeed", {}, {"sharding": "parameters", "activation_checkpointing": True}, "hf"),
        ("deepspeed", {"name": "mlm"}, {"sharding": "parameters"}),
        ("deepspeed", {}, {"sharding": "parameters"}, "static"),
    ],
    "combined": [
        ("torch-fsdp", {}, {}),
        ("torch-fsdp", {"negatives": "step"}, PARTS),
        ("torch-fsdp", {}, {}, "hf"),
        ("torch-fsdp", {}, {"dropout": 0.1}, "hf"),
        ("deepspeed", {}, {"sharding": "gradients"}),
        ("deepspeed", {}, {"sharding": "parameters"}),
        ("deepspeed", {"negatives": "step"}, {"sharding": "parameters"} | PARTS),
        ("deepspeed", {"name": "tsdae"}, {"sharding": "gradients"}),
        ("deepspeed", {}, {"sharding": "optimizer"}, "static"),
    ],
}
MATRIX = pytest.mark.matrix
CASES = [
    pytest.param(group, number, marks=MATRIX if group == "combined" else ())
    for group, ways in WAYS.items()
    for number in range(len(ways))
]


KINDS = {"": (SPEC, {}), "static": (STATIC, {}), "lora": (SPEC, LORA), "hf": (HF, {})}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two workers make, in each way of a group, for which they are started once."""

    @cache
    def by(group):
        return train_ranks(tmp_path_factory.mktemp("pair"), WAYS[group])

    return by


@pytest.mark.parametrize(("group", "number"), CASES, ids=str)
def test_parts_make_the_updates_of_the_whole(found, group, number):
    _, objective, training, *kind = WAYS[group][number]
    spec, encoder = KINDS[kind[0] if kind else ""]
    exact = "precision" not in training
    alone = one_process(objective, training, spec, encoder=encoder)
    check_whole(found(group)[number], alone, exact=exact, arrays=exact)
