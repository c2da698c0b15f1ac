"""What the engines that start torchrun refuse."""

import pytest

from pipelines.engines.distributor import check_conf
from pipelines.errors import EngineUnavailable

IGNORE = "pytorch.spark.distributor.ignoreSsl"


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
        check_conf({key: value}, "torch", IGNORE)


def test_a_conf_that_fits_passes():
    check_conf({}, "torch", IGNORE)
    check_conf({"spark.ssl.enabled": "true", IGNORE: "true"}, "torch", IGNORE)
    check_conf({"spark.task.resource.gpu.amount": "1"}, "torch", IGNORE)
