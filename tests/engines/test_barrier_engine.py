"""What PyTorch's engines refuse, of the conf and of layouts, and which stepper a layout has."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.resource import ResourceInformation

from pipelines.catalog import ENGINES, STEPPERS
from pipelines.engines.barrier_engine import _gpus_of_driver, barrier_rules
from pipelines.engines.base import check_conf, check_fit, load_engine
from pipelines.engines.spark_engine import DriverSide
from pipelines.errors import EngineUnavailable, InputError
from pipelines.settings import Config
from pipelines.settings.load import parse

MEMBERS, STAGES = {"model_parallel": 2}, {"pipeline_parallel": 2}

IGNORE = "pytorch.spark.distributor.ignoreSsl"
RULES = barrier_rules(IGNORE)


def driver_with(master, asked, addresses):
    """A driver's side whose Spark has these GPUs."""
    resources = {"gpu": ResourceInformation("gpu", addresses)} if addresses else {}
    return DriverSide(
        context=SimpleNamespace(master=master, resources=resources),
        conf={"spark.task.resource.gpu.amount": asked},
        profile=None,
        host="",
        bind="",
        identity=None,
        resources=ExitStack(),
    )


def config_with(engine, *settings):
    training = {"engine": engine, "framework": "torch", "workers": 4, "granules_per_step": 4}
    for more in settings:
        training |= more
    return parse({"training": training})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.speculation", "true"),
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.ssl.enabled", "true"),
        ("spark.task.resource.gpu.amount", "2"),
    ],
)
def test_a_conf_that_does_not_fit_is_named(key, value):
    with pytest.raises(EngineUnavailable, match=key):
        check_conf({key: value}, "torch", RULES)


def test_a_conf_that_fits_passes():
    check_conf({}, "torch", RULES)
    check_conf({"spark.ssl.enabled": "true", IGNORE: "true"}, "torch", RULES)
    check_conf({"spark.task.resource.gpu.amount": "1"}, "torch", RULES)


@pytest.mark.parametrize(
    ("master", "asked", "gpus"),
    [("local[2]", "1", ["0", "1"]), ("local[2]", "0", []), ("spark://host:7077", "1", [])],
)
def test_threads_of_the_driver_get_its_gpus(master, asked, gpus):
    assert list(_gpus_of_driver(driver_with(master, asked, ["0", "1"]), workers=2)) == gpus


@pytest.mark.parametrize("there", [["0"], []])
def test_a_local_session_with_fewer_gpus_than_workers_is_refused(there):
    with pytest.raises(EngineUnavailable, match=rf"has {len(there)} GPUs for 2 workers"):
        _gpus_of_driver(driver_with("local[2]", "1", there), workers=2)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("torch", TorchDistributor._TORCH_SSL_CONF),
        ("deepspeed", DeepspeedTorchDistributor._DEEPSPEED_SSL_CONF),
    ],
)
def test_the_key_that_accepts_clear_text_is_that_of_sparks_distributor(name, key):
    (rule,) = (rule for rule in load_engine(name).rules if rule.key == "spark.ssl.enabled")
    assert rule.unless == key


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
            "training.sharding: engine torch has no `parameters` with training.pipeline_parallel. "
            "Choose one of none",
            [STAGES, {"sharding": "parameters"}],
        ),
        (
            "deepspeed",
            "training.sharding: engine deepspeed has no `gradients` with "
            "training.pipeline_parallel. Choose one of optimizer",
            [STAGES, {"sharding": "gradients"}],
        ),
        (
            "deepspeed",
            "training.model_parallel: engine deepspeed does not know it. Leave it at 1",
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


def test_without_a_session_it_does_not_start():
    with pytest.raises(ValueError, match="engine torch trains in a Spark session"):
        load_engine("torch").check(None, Config())
