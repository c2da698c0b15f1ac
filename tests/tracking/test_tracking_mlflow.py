"""A run in a real MLflow server, and its model in processes that know nothing of this package."""

import importlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow.entities import Run
from mlflow.models import get_model_info
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark users know
from relays import free_port, relay

import pipelines
from pipelines.files import storage
from pipelines.models.identity import model_digest
from pipelines.settings import Config, StorageSettings
from pipelines.settings.load import parse
from pipelines.tracking import run_tracking as link
from pipelines.tracking.base import RunEnd, RunStart
from pipelines.tracking.mlflow import MlflowTracker, release, requirements
from pipelines.tracking.pyfunc import texts_of
from pipelines.tracking.run_tracking import RunTracking, databricks_environment

TEXTS = ["A cat sleeps on the sofa.", "The market fell by three per cent."]
LOADER = """
import sys, json, mlflow
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
import pipelines, pandas
texts = json.loads(sys.argv[3])
vectors = model.predict(texts)
asked = {"prompt_name": "query"}  # of which the model has none
same = model.predict(pandas.DataFrame({"any name": texts}), params=asked)
named = model.predict(pandas.DataFrame({"id": ["k-1", "k-2"], "text": texts}))
print(json.dumps([pipelines.__file__, *(found.tolist() for found in (vectors, same, named))]))
"""


def tracked(uri: str, **tracking) -> Config:
    return parse(
        {
            "tracking": {"trackers": ["mlflow"], "mlflow_uri": uri, **tracking},
            "spark": {"hadoop.fs.s3a.secret.key": "sesame", "executor.memory": "2g"},
        }
    )


@pytest.fixture
def client(mlflow_server) -> mlflow.MlflowClient:
    return mlflow.MlflowClient(tracking_uri=mlflow_server, registry_uri=mlflow_server)


def run_id(folder: Path) -> str:
    return json.loads((folder / "tracking" / "mlflow.json").read_text())["run_id"]


def start_of(config: Config, folder: Path) -> RunStart:
    """What a driver tells of a run that begins."""
    return RunStart(
        storage=StorageSettings(),
        run_folder=str(folder),
        settings=config.tracking,
        parameters={},
        config="",
        program="job.py",
        first_step=0,
    )


def history(client: mlflow.MlflowClient, folder: Path, name: str) -> list[tuple[int, float]]:
    found = client.get_metric_history(run_id(folder), name)
    return sorted((metric.step, metric.value) for metric in found)


def warnings(caplog) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]


def until(is_so, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def captions(mlflow_server, tmp_path_factory, model_folder) -> tuple[Path, list[Run]]:
    """A run that is begun, resumed without success, and evaluated; with what MLflow had of each."""
    folder, found = tmp_path_factory.mktemp("runs") / "captions", []
    config = tracked(mlflow_server, mlflow_experiment="encoders")

    def note() -> None:
        found.append(mlflow.MlflowClient(tracking_uri=mlflow_server).get_run(run_id(folder)))

    with RunTracking(config, folder, 0) as tracking:
        for step in (10, 20, 30):
            tracking.log(step, {"training/loss": 1 / step})
    note()
    # A run goes on where it was begun, whatever the experiment is now.
    more = {"mlflow_experiment": "others", "mlflow_registered_model": "encoder"}
    config = tracked(mlflow_server, wait_seconds=200, **more)
    longer = parse(config.model_dump() | {"training": {"max_steps": 60}})
    with pytest.raises(RuntimeError), RunTracking(longer, folder, 20) as tracking:
        tracking.log(40, {"training/loss": 1.0})
        raise RuntimeError("no space left\non the device")
    note()
    (folder / "report.html").write_text("<p>a report</p>")
    with RunTracking(longer, folder) as tracking:
        tracking.log(60, {"after/dev/spearman": 80.0})
        tracking.keep(folder / "report.html", folder / "not-there.json", model=model_folder)
    note()
    return folder, found


def test_a_run_its_resumption_and_its_evaluation_are_one_run(captions, client):
    folder, (run, resumed, evaluated) = captions
    assert run.info.run_name == "captions"
    assert client.get_experiment(run.info.experiment_id).name == "encoders"
    assert run.data.params["training.learning_rate"] == "5e-05"
    assert run.data.params["spark.executor.memory"] == "2g"
    assert "sesame" not in json.dumps(run.data.params)

    assert resumed.info.run_id == run.info.run_id
    assert resumed.info.status == "FAILED"
    assert resumed.data.tags["problem"] == "RuntimeError: no space left"
    assert resumed.data.params["training.max_steps"] == "null"
    assert resumed.data.tags["resumed.training.max_steps"] == "60"

    assert evaluated.info.run_id == run.info.run_id
    assert evaluated.info.status == "FINISHED"
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "config.yaml",
        "report.html",
    }
    losses = [(10, 0.1), (20, 0.05), (30, 1 / 30), (40, 1.0)]
    assert history(client, folder, "training/loss") == losses
    assert history(client, folder, "after/dev/spearman") == [(60, 80.0)]


def test_the_model_loads_where_this_package_is_not_there(
    spark, mlflow_server, client, captions, tmp_path, model_folder
):
    from sentence_transformers import SentenceTransformer

    (version,) = client.search_model_versions("name='encoder'")
    assert version.run_id == run_id(captions[0])

    expected = SentenceTransformer(str(model_folder), device="cpu").encode(TEXTS)
    elsewhere = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LOADER, mlflow_server, "models:/encoder/1", json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env=elsewhere,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    package, vectors, of_a_frame, by_name = json.loads(done.stdout.splitlines()[-1])
    # Its own copy, not what is installed here.
    assert "artifacts" in package or "tmp" in package
    assert not package.startswith(str(Path(__file__).resolve().parents[2] / "pipelines"))
    np.testing.assert_allclose(vectors, expected, atol=1e-4)
    assert of_a_frame == by_name == vectors

    mlflow.set_tracking_uri(mlflow_server)
    embed = mlflow.pyfunc.spark_udf(
        spark, "models:/encoder/1", result_type="array<float>", env_manager="local"
    )
    # In one task, since each executor would import all that the model needs.
    frame = spark.createDataFrame([("k", text) for text in TEXTS], "id string, text string")
    columns = {"name": embed("text"), "signature": embed(), "row": embed(F.struct("id", "text"))}
    vectors = [column.alias(name) for name, column in columns.items()]
    rows = frame.coalesce(1).select("text", *vectors).collect()
    assert [row["text"] for row in rows] == TEXTS
    for name in columns:
        np.testing.assert_allclose([row[name] for row in rows], expected, atol=1e-4)


@pytest.mark.parametrize(
    "given",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS).reshape(2, 1),
        pd.Series(TEXTS, name="caption"),
        pd.DataFrame({"caption": TEXTS}),
        pd.DataFrame({"id": ["k-1", "k-2"], "text": pd.Categorical(TEXTS)}),
        {"text": TEXTS, "id": ["k-1", "k-2"]},
        [{"id": "k-1", "text": TEXTS[0]}, {"text": TEXTS[1]}],
    ],
)
def test_what_a_model_takes_for_texts(given) -> None:
    assert texts_of(given) == TEXTS
    assert texts_of(TEXTS[0]) == texts_of({"text": TEXTS[0], "id": "k-1"}) == TEXTS[:1]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (pd.DataFrame({"id": ["k-1"], "caption": ["a"]}), "`text`, and has 2 columns: id, caption"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "has 2 columns: text, text"),
        ([{"id": "k-1", "caption": "a"}], "needs one column called `text`"),
        (np.array([["k-1", "a"], ["k-2", "b"]]), r"has the shape \(2, 2\)"),
        (["a", None], "row 1 of 2 is no text: None"),
        (pd.DataFrame({"text": ["a", None]}), "row 1 of 2 is no text"),
        (pd.Series(["a", float("nan")]), "row 1 of 2 is no text: nan"),
        ([1, 2], "row 0 of 2 is no text: 1"),
    ],
)
def test_what_a_model_does_not_take_for_texts(given, problem) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        texts_of(given)


def test_a_model_is_registered_again_only_if_it_has_changed(
    mlflow_server, client, tmp_path, model_folder, monkeypatch
):
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(model_folder, model)
    # The package that travels with each has hundreds of files, and nobody loads these models.
    code = tmp_path / "code" / "pipelines" / "__init__.py"
    code.parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(pipelines, "__file__", str(code))
    monkeypatch.setattr(sys, "path", [*sys.path])

    def versions(registered: str | None) -> int:
        # What the tracker's process does, in this one: each would import all anew.
        tracker = MlflowTracker()
        tracker.start(start_of(tracked(mlflow_server, mlflow_registered_model=registered), run))
        tracker.finish(RunEnd(status="finished", step=7, model=str(model)))
        return len(client.search_model_versions("name='kept'"))

    assert versions(None) == 0
    # A name that is asked for later gets the model, too.
    assert versions("kept") == 1
    digest = model_digest(model)
    assert client.get_run(run_id(run)).data.tags["model_digest"] == digest
    assert get_model_info("models:/kept/1").metadata["model_digest"] == digest
    assert versions("kept") == 1
    # That of an earlier release is known.
    noted = storage.read_json(run / "tracking" / "mlflow.json")
    earlier = {"digest": storage.digest_folder(model, without=("README.md",))}
    noted["model"] = {"registered": "kept"} | earlier
    storage.write_json(run / "tracking" / "mlflow.json", noted)
    assert versions("kept") == 1
    # The card is written again when a model was measured, which makes no other model of it.
    (model / "README.md").write_text("With figures.")
    assert versions("kept") == 1
    (model / "notes.txt").write_text("Another one.")
    assert versions("kept") == 2
    # A run that somebody has deleted in MLflow is begun anew, with its model.
    deleted = run_id(run)
    client.delete_run(deleted)
    assert versions("kept") == 3
    assert run_id(run) != deleted


def test_what_a_model_needs_can_be_installed():
    importlib.import_module("torch")
    names = {line.partition("==")[0]: line.partition("==")[2] for line in requirements()}
    assert {"mlflow", "numpy", "torch"} <= set(names)
    # Indexes have releases, not the builds that are installed: torch's is often labelled +cpu.
    assert metadata.version("torch").startswith(names["torch"])
    assert [line for line in requirements() if "+" in line] == []
    assert (release("2.13.0+cpu"), release("2.0.0rc1")) == ("2.13.0", "2.0.0rc1")


def test_a_child_process_gets_the_workspace_of_databricks(monkeypatch):
    plain = Config().tracking
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert databricks_environment(plain) == {}
    monkeypatch.setenv("DATABRICKS_HOST", "https://workspace.example")
    monkeypatch.setenv("DATABRICKS_TOKEN", "dapi-1")
    assert databricks_environment(plain) == {}
    found = databricks_environment(tracked("databricks").tracking)
    assert found["DATABRICKS_HOST"] == "https://workspace.example"
    assert found["DATABRICKS_TOKEN"] == "dapi-1"
    assert found["MLFLOW_TRACKING_URI"] == "databricks"


def test_a_driver_that_is_killed_leaves_a_run_that_says_so(mlflow_server, client, tmp_path):
    with (tmp_path / "log").open("wb") as log:
        tracker = subprocess.Popen(
            [sys.executable, "-m", "pipelines.tracking.process", "mlflow"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    start = start_of(tracked(mlflow_server), tmp_path)
    sections = {"settings": start.settings.model_dump(), "storage": start.storage.model_dump()}
    given = asdict(start) | sections
    tracker.stdin.write(json.dumps({"call": "start", "with": given}).encode() + b"\n")
    # As when the system closes the pipes of a process that is gone.
    tracker.stdin.close()
    tracker.stdout.close()
    assert tracker.wait(100) == 0, (tmp_path / "log").read_text()
    run = client.get_run(run_id(tmp_path))
    assert run.info.status == "KILLED"
    assert run.data.tags["problem"] == "the driver's process died"


def test_what_a_server_that_died_has_missed_reaches_it_when_it_is_back(
    mlflow_server, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(link, "RETRY_SECONDS", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    client = mlflow.MlflowClient(tracking_uri=mlflow_server)
    # The tracker has one address, and what is behind it goes and comes.
    port = free_port()
    config = tracked(f"http://127.0.0.1:{port}", wait_seconds=60)
    with RunTracking(config, tmp_path, 0) as tracking:
        with relay(mlflow_server, port):
            tracking.log(1, {"training/loss": 1.0})
            id_file = tmp_path / "tracking" / "mlflow.json"
            until(lambda: id_file.exists() and history(client, tmp_path, "training/loss"))
        tracking.log(2, {"training/loss": 0.5})
        until(lambda: warnings(caplog))
        assert history(client, tmp_path, "training/loss") == [(1, 1.0)]
        with relay(mlflow_server, port):
            tracking.log(3, {"training/loss": 0.25})
            until(lambda: len(history(client, tmp_path, "training/loss")) == 3)
            tracking.log(4, {"training/loss": 0.125})
            until(lambda: len(history(client, tmp_path, "training/loss")) == 4)
    assert len(warnings(caplog)) == 1
