"""What dllib asks of a session that is started for it."""

import pytest
from corpus_factory import small_config

from pipelines.engines.bigdl import dllib_engine
from pipelines.engines.bigdl.dllib_engine import DRIVER_KEY, EXECUTOR_KEY, DllibEngine

pytest.importorskip("bigdl", reason="BigDL is not installed")
KERNELS = "spark.executorEnv.MKL_DEBUG_CPU_TYPE"


def asked(config, **conf):
    return DllibEngine().session_conf(config, {"spark.master": "local-cluster[2,1,1024]", **conf})


@pytest.mark.parametrize(("widest", "number"), [("avx512", "7"), ("avx2", "5"), (None, None)])
def test_mkl_is_told_what_a_processor_of_others_has(monkeypatch, tmp_path, widest, number):
    monkeypatch.setattr(dllib_engine, "widest_unused_by_mkl", lambda: widest)
    config = small_config(tmp_path)
    assert asked(config).get(KERNELS) == number
    # Executors of a cluster may have other processors.
    assert KERNELS not in asked(config, **{"spark.master": "spark://there:7077"})
    assert KERNELS not in asked(config, **{KERNELS: "4"})


def test_a_session_has_the_memory_that_prepared_lanes_need(prepared, tmp_path):
    keys = {EXECUTOR_KEY, DRIVER_KEY}
    assert not keys & asked(small_config(tmp_path)).keys()
    config = small_config(prepared, framework="bigdl", dropout=0.0)
    assert keys <= asked(config).keys()
    assert EXECUTOR_KEY not in asked(config, **{EXECUTOR_KEY: "9g"})
