"""What the engines that start torchrun refuse."""

import pytest

from pipelines.engines.conf import refuse_unfit
from pipelines.engines.distributor import distributor_rules
from pipelines.errors import EngineUnavailable

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
        refuse_unfit({key: value}, "torch", RULES)


def test_a_conf_that_fits_passes():
    refuse_unfit({}, "torch", RULES)
    refuse_unfit({"spark.ssl.enabled": "true", IGNORE: "true"}, "torch", RULES)
    refuse_unfit({"spark.task.resource.gpu.amount": "1"}, "torch", RULES)
