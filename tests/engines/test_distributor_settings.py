"""Which stepper the engines of torchrun take for a layout, and which layouts they refuse."""

import pytest

from pipelines.catalog import ENGINES, STEPPERS
from pipelines.engines.base import check_fit, load_engine
from pipelines.errors import InputError
from pipelines.settings.load import parse

MEMBERS, STAGES = {"model_parallel": 2}, {"pipeline_parallel": 2}


def config_with(engine, *settings):
    training = {"engine": engine, "framework": "torch", "workers": 4, "granules_per_step": 4}
    for more in settings:
        training |= more
    return parse({"training": training})


@pytest.mark.parametrize(
    ("stepper", "settings"),
    [
        ("torch-fsdp", [{"sharding": "parameters"}]),
        ("torch-tensor", [MEMBERS]),
        ("torch-tensor-fsdp", [MEMBERS, {"sharding": "parameters", "offload": "disk"}]),
        ("torch-pipeline", [STAGES]),
        ("torch-pipeline", [MEMBERS, STAGES]),
    ],
)
def test_a_layout_has_its_stepper(stepper, settings):
    engine, config = load_engine("torch"), config_with("torch", *settings)
    check_fit(engine, config)
    assert STEPPERS.module(stepper) in engine.preloads(config)


@pytest.mark.parametrize(
    ("engine", "message", "settings"),
    [
        (
            "torch",
            "training.sharding: with training.pipeline_parallel engine torch has no `parameters`, "
            "one of none",
            [STAGES, {"sharding": "parameters"}],
        ),
        (
            "deepspeed",
            "training.sharding: with training.pipeline_parallel engine deepspeed has no "
            "`gradients`, one of optimizer",
            [STAGES, {"sharding": "gradients"}],
        ),
        (
            "deepspeed",
            "training.model_parallel: engine deepspeed does not know it, leave it 1",
            [MEMBERS, {"sharding": "optimizer"}],
        ),
    ],
)
def test_a_layout_that_an_engine_does_not_have_is_refused(engine, message, settings):
    with pytest.raises(InputError) as caught:
        check_fit(load_engine(engine), config_with(engine, *settings))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("layout", [{}, STAGES])
def test_deepspeed_splits_the_least_unless_told(layout):
    engine, config = load_engine("deepspeed"), config_with("deepspeed", layout)
    check_fit(engine, config)
    assert config.training.sharding == "optimizer"
    with pytest.raises(InputError, match=r"^training\.sharding: engine deepspeed has no `none`"):
        check_fit(engine, config_with("deepspeed", layout, {"sharding": "none"}))


def test_every_engine_has_the_sharding_that_is_its_default():
    for name in ENGINES:
        assert (
            parse({"training": {"engine": name}}).training.sharding in load_engine(name).shardings
        )
