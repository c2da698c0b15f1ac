"""What BigDL's Orca leaves open."""

import psutil
import pytest

from pipelines.engines.orca.engine import OrcaEngine

pytest.importorskip("bigdl", reason="BigDL is not installed")


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
