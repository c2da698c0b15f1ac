"""What BigDL's Orca is asked, and what it leaves open."""

import psutil
import pytest

from pipelines.engines.bigdl.orca import ORCA_RULES, train_with_orca
from pipelines.engines.conf import refuse_unfit
from pipelines.errors import EngineUnavailable

pytest.importorskip("bigdl", reason="BigDL is not installed")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.speculation", "true"),
        ("spark.dynamicAllocation.enabled", "true"),
        ("spark.task.resource.gpu.amount", "1"),
        ("spark.task.resource.gpu.amount", "0.5"),
    ],
)
def test_a_conf_that_does_not_fit_is_named(key, value):
    with pytest.raises(EngineUnavailable, match=key):
        refuse_unfit({key: value}, "bigdl", ORCA_RULES)


def test_a_conf_that_fits_passes():
    refuse_unfit({"spark.speculation": "false", "spark.task.cpus": "1"}, "bigdl", ORCA_RULES)


def test_the_driver_listens_at_the_address_of_the_session_alone(spark, make_run):
    before, seen = listening(), set()

    def look(line):
        seen.update(listening() - before)

    train_with_orca(spark, make_run(4, workers=2, framework="torch"), look)
    assert len(seen) >= 2, "the monitor, and the store where the workers meet"
    assert {address.ip for address in seen} == {"127.0.0.1"}
    assert not listening() - before


def listening():
    """What this process listens at."""
    found = psutil.Process().net_connections("tcp")
    return {one.laddr for one in found if one.status == psutil.CONN_LISTEN}
