"""What the engines that start torchrun refuse."""

import pytest
from pyspark.ml.deepspeed.deepspeed_distributor import DeepspeedTorchDistributor
from pyspark.ml.torch.distributor import TorchDistributor

from pipelines.engines.base import load_engine
from pipelines.settings import Config
from pipelines.training.loop import STEPPERS


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
