"""What BigDL's Orca is asked, and what it leaves open."""

import psutil
import pytest

from pipelines.engines.base import check_conf
from pipelines.engines.orca.engine import OrcaEngine
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
        check_conf({key: value}, "bigdl", OrcaEngine.rules)


def test_a_conf_that_fits_passes():
    check_conf({"spark.speculation": "false", "spark.task.cpus": "1"}, "bigdl", OrcaEngine.rules)


def test_the_driver_listens_at_the_address_of_the_session_alone(spark, make_run):
    before, seen = listening(), set()

    def look(line):
        seen.update(listening() - before)

    OrcaEngine().train(spark, make_run(4, workers=1, framework="torch"), look)
    assert len(seen) >= 2, "the monitor, and the store where the workers meet"
    assert {address.ip for address in seen} == {"127.0.0.1"}
    assert not listening() - before


def listening():
    """What this process listens at."""
    found = psutil.Process().net_connections("tcp")
    return {one.laddr for one in found if one.status == psutil.CONN_LISTEN}
