"""What dllib asks of a session that is started for it, and where its workers put their states."""

import pytest
from corpus_factory import small_config

from pipelines.engines.bigdl import dllib_engine
from pipelines.engines.bigdl.dllib_engine import DRIVER_KEY, EXECUTOR_KEY, DllibEngine
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import location
from pipelines.files.run_folder import RunFolder

pytest.importorskip("bigdl", reason="BigDL is not installed")
states_in = pytest.importorskip("pipelines.engines.bigdl.dllib").states_in
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


def test_the_folder_goes_with_the_training(tmp_path):
    checkpoints = RunFolder(tmp_path).checkpoints
    with states_in(tmp_path, 2) as first, states_in(tmp_path, 2) as second:
        assert first.folder != second.folder, "an earlier attempt may write still"
        assert sorted(checkpoints.iterdir()) == sorted([first.folder, second.folder])
    assert list(checkpoints.iterdir()) == []


def test_what_a_driver_that_died_has_left_is_swept_by_whoever_goes_on(tmp_path):
    checkpoints = RunFolder(tmp_path).checkpoints
    with states_in(tmp_path, 2) as states:
        (states.folder / "state-3-0.bin").write_bytes(b"half of it")
        storage.sweep(checkpoints)
        assert list(checkpoints.iterdir()) == []


def test_a_store_is_refused():
    with pytest.raises(InputError, match=r"^run\.folder: s3://lake/run is in an object store"):
        states_in(location("s3://lake/run"), 2).__enter__()
