"""Which engine `training.engine: auto` is."""

import pytest

from pipelines.engines import automatic
from pipelines.engines.automatic import with_engine
from pipelines.errors import EngineUnavailable, InputError
from pipelines.files import storage
from pipelines.files.run_folder import RunFolder
from pipelines.runs.job_records import go_on
from pipelines.settings.load import parse

EVERYTHING = {
    *("torch", "tensorflow", "tensorflowonspark", "horovod", "deepspeed", "elephas", "pyspark"),
    "bigdl",
}
ENCRYPTED = {"spark": {"ssl.enabled": "true"}}


@pytest.fixture
def installed(monkeypatch):
    """The libraries that are there, which a test may take away; and no session."""
    there = set(EVERYTHING)
    monkeypatch.setattr("pipelines.libraries.is_installed", there.__contains__)
    monkeypatch.setattr("pipelines.engines.horovod.engine.is_installed", there.__contains__)
    monkeypatch.setattr("pipelines.engines.base.check_spark", lambda *_: None)
    monkeypatch.setattr(automatic, "_running_conf", dict)
    return there


def taken(training=None, **sections):
    chosen = with_engine(parse({"training": training or {}, **sections})).training
    return f"{chosen.engine} with {chosen.framework}"


@pytest.mark.parametrize(
    ("training", "engine"),
    [
        ({}, "torch with torch"),
        ({"engine": "auto"}, "torch with torch"),
        ({"tokens_per_forward": 512}, "torch with torch"),
        ({"compression": "fp16"}, "horovod with torch"),
        ({"compression": "bf16"}, "torch with torch"),
        ({"sharding": "gradients"}, "deepspeed with torch"),
        ({"mode": "async"}, "tensorflowonspark with tensorflow"),
        ({"mode": "hogwild"}, "elephas with tensorflow"),
        ({"feed": "spark"}, "tensorflowonspark with tensorflow"),
        ({"framework": "tensorflow"}, "tensorflowonspark with tensorflow"),
        ({"framework": "bigdl", "dropout": 0.0}, "bigdl with bigdl"),
        ({"engine": "elephas"}, "elephas with tensorflow"),
    ],
)
def test_the_first_that_knows_the_settings_is_taken(installed, training, engine):
    assert taken(training) == engine


@pytest.mark.parametrize(
    ("missing", "engine"),
    [
        ({"torch"}, "tensorflowonspark with tensorflow"),
        ({"torch", "tensorflowonspark"}, "horovod with tensorflow"),
    ],
)
def test_what_is_not_installed_is_not_taken(installed, missing, engine):
    installed -= missing
    assert taken() == engine


def test_the_conf_decides_too(installed, monkeypatch, tmp_path):
    assert taken(spark={"dynamicAllocation.enabled": "true"}) == "horovod with torch"
    # Where the cluster encrypts, nothing is sent in clear text unasked.
    assert taken(**ENCRYPTED) == "tensorflowonspark with tensorflow"
    (tmp_path / "spark-defaults.conf").write_text("spark.network.crypto.enabled  true\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert taken() == "tensorflowonspark with tensorflow"
    accepted = {"spark.ssl.enabled": "true", "pytorch.spark.distributor.ignoreSsl": "true"}
    monkeypatch.setattr(automatic, "_running_conf", lambda: accepted)
    assert taken() == "torch with torch"


def test_if_none_fits_the_reason_is_that_of_the_best(installed):
    with pytest.raises(InputError, match=r"^training\.offload: training\.sharding `none`"):
        taken({"offload": "cpu"})
    installed.clear()
    with pytest.raises(EngineUnavailable, match=r"^training\.engine: torch is not installed"):
        taken({"framework": "torch"})


def test_a_run_that_goes_on_keeps_its_engine(installed, tmp_path, caplog):
    caplog.set_level("INFO")
    folder = RunFolder(tmp_path)
    began = parse({"training": {"engine": "horovod"}, "run": {"folder": str(tmp_path)}})
    go_on(tmp_path, began, 0, 10)
    assert storage.read_json(folder.history)
    resumed = {"run": {"folder": str(tmp_path)}}
    assert taken({"resume": True}, **resumed) == "horovod with tensorflow"
    assert "engine horovod with tensorflow continues its run" in caplog.text
    assert taken({"resume": True, "framework": "torch"}, **resumed) == "torch with torch"
    assert taken({"resume": True, "engine": "elephas"}, **resumed) == "elephas with tensorflow"
    assert "others that fit: horovod with torch" in caplog.text
