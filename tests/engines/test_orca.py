"""What BigDL's Orca is asked, and what it leaves open."""

import numpy as np
import psutil
import pytest
from test_equivalence import curve, with_step_negatives

from pipelines.engines.bigdl.orca import check_conf, train_with_orca
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
        check_conf({key: value})


def test_a_conf_that_fits_passes():
    check_conf({"spark.speculation": "false", "spark.task.cpus": "1"})


def test_its_steps_have_dropout_and_negatives_of_the_whole_step(spark, make_run):
    settings = {"dropout": 0.1, "framework": "torch", "feed": "memory"}
    alone = make_run(12, "reference", workers=1, **settings)
    together = make_run(12, workers=2, **settings)
    expected = curve(spark, with_step_negatives(alone), "local")
    ours = curve(spark, with_step_negatives(together), "bigdl")
    np.testing.assert_allclose(ours, expected, rtol=1e-3)


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
