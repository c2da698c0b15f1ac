"""Workers that hold parts of an encoder by Megatron, against one process that holds all of it."""

from functools import cache
from importlib.util import find_spec

import pytest
from rank_pair import check_resumed, check_whole, one_process, train_ranks
from steppers import KINDS

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


@pytest.mark.parametrize(("workers", "number"), CASES, ids=str)
def test_parts_make_the_updates_of_the_whole(made, workers, number):
    _, objective, training, kind = WAYS[workers][number]
    alone = one_process(objective, training, KINDS[kind])
    # Scores do not depend on it: its gradient is rounding alone, which AdamW takes for large.
    spared = "attention.self.key.bias"
    exact = "precision" not in training
    check_whole(made(workers)[number], alone, exact=exact, rtol=1e-3, spared=spared)


def test_one_process_goes_on_from_their_checkpoint(made):
    _, *way, kind = WAYS[4][4]
    check_resumed(made(4)[4]["last"], way, KINDS[kind])
