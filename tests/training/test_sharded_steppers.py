"""Two workers that hold parts of the state, against one process that holds all of it."""

import numpy as np
import pytest
from rank_pair import GRANULES, LORA, MIDDLE, STEPS, TRAINING, curve, train_ranks
from steppers import SPEC, STATIC, stepper

pytestmark = pytest.mark.slow

HARD = {"precision": "bf16", "dropout": 0.1, "activation_checkpointing": True}

PARTS = {"tokens_per_micro_batch": 16}

WAYS = [
    ("torch", {}, {}),
    ("torch", {"negatives": "step"}, {"ema": 0.9}, "lora"),
    ("torch-fsdp", {}, {}),
    ("torch-fsdp", {"negatives": "step"}, HARD),
    ("deepspeed", {}, {"sharding": "optimizer"}),
    ("deepspeed", {}, {"sharding": "gradients"}),
    ("deepspeed", {}, {"sharding": "parameters"}),
    ("deepspeed", {"negatives": "step"}, {"sharding": "parameters"} | HARD),
    ("torch-fsdp", {"negatives": "step"}, PARTS),
    ("deepspeed", {}, {"sharding": "gradients"} | PARTS),
    ("deepspeed", {"negatives": "step"}, {"sharding": "parameters"} | PARTS),
    ("torch", {"name": "tsdae"}, {"dropout": 0.1}),
    ("torch-fsdp", {"name": "retromae"}, PARTS),
    ("deepspeed", {"name": "tsdae"}, {"sharding": "gradients"}),
    ("deepspeed", {"name": "mlm"}, {"sharding": "parameters"}),
    ("torch-fsdp", {}, {}, "static"),
    ("deepspeed", {}, {"sharding": "optimizer"}, "static"),
    ("deepspeed", {}, {"sharding": "parameters"}, "static"),
]


KINDS = {"": (SPEC, {}), "static": (STATIC, {}), "lora": (SPEC, LORA)}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two workers make, in each way: both are started once."""
    return train_ranks(tmp_path_factory.mktemp("pair"), WAYS)


@pytest.mark.parametrize("number", range(len(WAYS)), ids=lambda number: str(WAYS[number]))
def test_parts_make_the_updates_of_the_whole(found, number):
    (_, objective, training, *kind), result = WAYS[number], found[number]
    spec, encoder = KINDS[kind[0] if kind else ""]
    alone = stepper("torch", objective, TRAINING | training, spec=spec, encoder=encoder)
    expected = curve(alone, range(STEPS), 0, GRANULES)
    exact = "precision" not in training
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-5 if exact else 1e-3)
    assert result["norm"] == pytest.approx(alone.gradient_norm, rel=1e-4 if exact else 2e-2)
    # Matrix products may be summed in another order where memory lies otherwise.
    again = result["losses"][MIDDLE:]
    np.testing.assert_allclose(result["again"], again, rtol=1e-6 if exact else 1e-3)
    if exact:
        last = alone.checkpoint(STEPS)
        assert result["last"].moments.keys() == last.moments.keys()
        for name, array in last.weights.items():
            np.testing.assert_allclose(result["last"].weights[name], array, atol=1e-5, err_msg=name)
