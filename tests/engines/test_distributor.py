"""What the engines that start torchrun refuse."""

import pytest
from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
from pyspark.ml.torch.distributor import TorchDistributor

from pipelines.engines.base import check_conf, load_engine
from pipelines.engines.distributor_engine import distributor_rules
from pipelines.errors import EngineUnavailable
from pipelines.settings import Config
from pipelines.training.loop import STEPPERS

IGNORE = "pytorch.spark.distributor.ignoreSsl"
RULES = distributor_rules(IGNORE)


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
    ("name", "key"),
    [
        ("torch", TorchDistributor._TORCH_SSL_CONF),
        ("deepspeed", DeepspeedTorchDistributor._DEEPSPEED_SSL_CONF),
    ],
)
def test_the_key_that_accepts_clear_text_is_the_library_s(name, key):
    (rule,) = (rule for rule in load_engine(name).rules if rule.key == "spark.ssl.enabled")
    assert rule.unless == key


@pytest.mark.parametrize("name", ["torch", "deepspeed"])
def test_every_sharding_has_a_stepper(name):
    engine = load_engine(name)
    assert set(engine.steppers.values()) <= set(STEPPERS)


def test_without_a_session_it_does_not_start():
    with pytest.raises(ValueError, match="engine torch trains in a Spark session"):
        load_engine("torch").check(None, Config())
