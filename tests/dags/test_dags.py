"""The DAGs in a real Airflow: what they are made of, and what becomes of their runs."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import only_retrieval, small_config
from local_servers import Chat, serving

from pipelines.evaluation.intervals import (
    digest_observations,
    read_observations,
    write_observations,
)
from pipelines.files import storage
from pipelines.files.run_folder import OBSERVATIONS
from pipelines.models.identity import model_digest
from pipelines.settings.load import dump

ROOT = Path(__file__).resolve().parents[2]
DAGS = ["databricks", "emr", "emr_serverless", "kubernetes", "spark"]
STAGES = ["prepare", "train", "evaluate", "promote", "embed", "publish", "clean"]
RULES = {"embed": "none_failed", "publish": "none_failed", "clean": "all_done_setup_success"}
DAG = "sentence_encoder_spark"
STEPS, EVERY = 200, 20
SETTINGS = (
    *(f"training.max_steps={STEPS}", "training.epochs=99"),
    f"training.checkpoint_every={EVERY}",
)

SUBMITTED = "Cannot execute: spark-submit --conf a=b jobs/promote.py. Error code is: {}."
ON_KUBERNETES = SUBMITTED + " Kubernetes spark exit code is: {}"
ON_DATABRICKS = "promote failed with terminal state: {{}} and with the errors [{{'error': '{}'}}]"
TRIED_AGAIN, FAILED, SKIPPED = "AirflowException", "AirflowFailException", "AirflowSkipException"
# What becomes of a task whose operator fails with such a message, and no outcome can be read.
VERDICTS = {
    SUBMITTED.format(1): TRIED_AGAIN,
    SUBMITTED.format(2): FAILED,
    SUBMITTED.format(3): FAILED,
    SUBMITTED.format(4): SKIPPED,
    SUBMITTED.format(137): TRIED_AGAIN,
    SUBMITTED.format(23): TRIED_AGAIN,
    ON_KUBERNETES.format(0, 3): FAILED,
    ON_KUBERNETES.format(1, 3): FAILED,
    ON_KUBERNETES.format(0, 1): TRIED_AGAIN,
    SUBMITTED.format(1) + "\nLast spark-submit output:\nSystemExit: 3": TRIED_AGAIN,
    ON_DATABRICKS.format("SystemExit: 3"): FAILED,
    ON_DATABRICKS.format("SystemExit: 1"): TRIED_AGAIN,
    ON_DATABRICKS.format("Cluster 3 was terminated"): TRIED_AGAIN,
    "Job failed, please check complete logs. ExitCode: 2. Last few exceptions: ...": FAILED,
    "Pod a-driver returned a failure. {'terminated': {'exit_code': 3}}": FAILED,
    "": TRIED_AGAIN,
}


@pytest.fixture(scope="module")
def described(ask_airflow) -> dict[str, Any]:
    return ask_airflow("describe", json.dumps(list(VERDICTS)))


def test_the_files_are_read_without_errors_and_without_heavy_imports(described):
    assert described["errors"] == {}
    assert sorted(described["dags"]) == [f"sentence_encoder_{name}" for name in DAGS]
    heavy = {"pipelines", "pyspark", "tensorflow", "torch", "pandas", "numpy", "pyarrow"}
    assert heavy.isdisjoint(described["modules"])
    assert described["variables_read"] == []


def test_every_dag_and_task_keeps_to_the_rules(described):
    for dag in described["dags"].values():
        assert dag["catchup"] is False
        assert dag["max_active_runs"] == 1
        assert dag["tags"]
        assert "docs/guides/airflow.md" in dag["doc"]
        assert dag["timeout"] > 0
        assert dag["params"] == ["config", "force", "overrides", "run"]
        assert dag["schedule"] == ["0 0 * * 0", "x-sentence-encoder://corpus"]
        assert list(dag["tasks"]) == STAGES
        tries = [task["retries"] + 1 for task in dag["tasks"].values()]
        longest = [
            count * (task["timeout"] + task["retry_delay"])
            for count, task in zip(tries, dag["tasks"].values(), strict=True)
        ]
        # The run lasts as long as the last try of its last task, and not for ever.
        assert sum(longest) < dag["timeout"] <= sum(longest) + 3600 * sum(tries)
        for name, task in dag["tasks"].items():
            assert task["owner"] == "sentence-pipelines"
            assert task["retries"] >= 1
            assert task["retry_delay"] >= 60
            assert task["timeout"] > 0
            assert task["alert"] == ["Alert"]
            assert task["rule"] == RULES.get(name, "all_success")
            assert task["is_teardown"] is (name == "clean")
            assert task["pool"] == ("encoders" if name == "train" else "default_pool")
            assert task["doc"]
            place = STAGES.index(name)
            assert task["after"] == STAGES[place - 1 : place] if place else not task["after"]


def test_what_is_made_is_an_asset_that_other_dags_can_wait_for(described):
    for dag_id, dag in described["dags"].items():
        made = {name: task["outlets"] for name, task in dag["tasks"].items() if task["outlets"]}
        assert made == {
            "promote": [f"x-sentence-encoder://{dag_id}/model"],
            "embed": [f"x-sentence-encoder://{dag_id}/vectors"],
            # And an alias of the store's own asset, whose name the job tells.
            "publish": [f"x-sentence-encoder://{dag_id}/store", f"x-sentence-encoder://{dag_id}"],
        }


def test_no_worker_is_kept_while_databricks_works(described):
    deferred = {
        dag_id
        for dag_id, dag in described["dags"].items()
        if all(task["deferrable"] for task in dag["tasks"].values())
    }
    assert deferred == {"sentence_encoder_databricks"}


def test_drivers_that_are_left_to_a_cluster_can_be_followed(described):
    assert described["tracked"] == {
        "spark-submit": [False, False],
        "yarn": [True, False],
        "kubernetes": [False, True],
    }


def test_only_what_another_try_may_mend_is_tried_again(described):
    assert dict(zip(VERDICTS, described["verdicts"], strict=True)) == VERDICTS


@pytest.fixture(scope="module")
def chain(prepared, tmp_path_factory, described, ask_airflow) -> Callable[..., list[dict]]:
    """Runs the Spark DAG on the small corpus, once for each request, and tells all about it.

    After the files were described: by then the same process has imported what runs need.
    """
    folder = tmp_path_factory.mktemp("chain")
    config = only_retrieval(small_config(prepared, engine="local", workers=1, framework="torch"))
    config = config.changed("promotion", target=str(folder / "served"))
    (folder / "small.yaml").write_text(dump(config))
    texts = {"id": [1, 2, 3], "text": ["a river", "two dogs", "a river in the snow"]}
    pq.write_table(pa.table(texts), folder / "texts.parquet")
    embedding = [f"embedding.inputs=[{folder / 'texts.parquet'}]"]
    embedding += [f"embedding.output={folder / 'vectors'}", "embedding.backend=torch"]
    embedding += ["embedding.key_column=id", "embedding.overwrite=false"]
    publishing = ["publish.store=lancedb", f"publish.address={folder / 'lance'}"]
    variable = {
        "config": str(folder / "small.yaml"),
        "runs": str(folder / "runs"),
        "stages": {"embed": {"overrides": embedding}, "publish": {"overrides": publishing}},
        "conf": {
            "spark.pyspark.python": sys.executable,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            # Compiling queries that are run once costs more than it gives.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
        "alert": "chat",
    }

    def run(*requests: dict[str, Any]) -> list[dict[str, Any]]:
        lines: list[str] = []
        with serving(Chat, lines=lines) as chat:
            found = ask_airflow(
                "run",
                *map(json.dumps, requests),
                AIRFLOW_VAR_SENTENCE_ENCODER=json.dumps(variable),
                AIRFLOW_CONN_CHAT=json.dumps({"conn_type": "http", **chat}),
            )
        runs = folder / "runs" / DAG
        shared = {"alerts": lines, "served": folder / "served", "output": found["output"]}
        # Of other tests with the same Airflow there may be more.
        for one in found["runs"]:
            one["events"] = [event for event in one["events"] if event["dag"] == DAG]
        return [
            run | shared | {"folder": runs / request["conf"]["run"]}
            for run, request in zip(found["runs"], requests, strict=True)
        ]

    run.folder = folder
    return run


def request(name: str, *overrides: str, skip: str = "") -> dict[str, Any]:
    """A run into a folder of a name; tasks that match count as done."""
    conf = {"run": name, "overrides": overrides}
    return {"dag": DAG, "conf": conf, "skip": skip}


def kill_training(run_folder: Path, after: int, stopped: threading.Event) -> list[list[str]]:
    """Kills the process that trains, once; gives the metrics lines that it had written by then."""
    path, trainers = run_folder / "metrics.jsonl", []
    while not stopped.wait(0.01):
        # Found before the steps are made, which take less time than to look for it.
        trainers = trainers or (training_processes() if run_folder.exists() else [])
        if trainers and path.exists() and len(path.read_text().splitlines()) > after:
            for trainer in trainers:
                trainer.kill()
            return [path.read_text().splitlines()]
    return []


def training_processes() -> list[psutil.Process]:
    """The drivers of `jobs/train.py` among all processes below this one."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = child.cmdline()
            is_python = bool(command) and "python" in Path(command[0]).name
            if is_python and str(ROOT / "jobs/train.py") in command[1:2]:
                found.append(child)
    return found


@pytest.fixture(scope="module")
def killed_once(chain) -> dict[str, Any]:
    """A run whose training is killed after the first checkpoint; with the lines it had written."""
    stopped = threading.Event()
    run_folder = chain.folder / "runs" / DAG / "first"
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_training, run_folder, EVERY + 10, stopped)
        try:
            (found,) = chain(request("first", *SETTINGS))
        finally:
            stopped.set()
    return found | {"killed": killed.result(120)}


def test_a_killed_training_goes_on_and_its_model_is_promoted(killed_once):
    found, run_folder = killed_once, killed_once["folder"]
    assert found["state"] == "success", found["output"][-5000:]
    tries = {name: tries for name, (_, tries) in found["tasks"].items()}
    assert tries == {name: 2 if name == "train" else 1 for name in STAGES}
    assert found["alerts"] == []
    (lines,) = found["killed"]
    last = (run_folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in last] == list(range(1, STEPS + 1))
    # Rates differ at every try: lines that are the same were written by the try that was killed.
    kept = sum(old == new for old, new in zip(lines, last, strict=False))
    assert kept >= EVERY
    assert kept % EVERY == 0
    record = json.loads((found["served"] / "versions/00001/promotion.json").read_text())
    assert record["run"] == str(run_folder)
    assert (found["served"] / "current").readlink() == Path("versions/00001")


def test_figures_and_the_version_are_handed_on_and_the_texts_are_embedded(killed_once):
    handed_on = {name: values.get("outcome") for name, values in killed_once["xcom"].items()}
    assert handed_on["train"]["steps"] == STEPS
    metrics = storage.read_json(killed_once["folder"] / "metrics.json")
    assert handed_on["evaluate"]["after"] == metrics["after"]
    assert handed_on["promote"]["version"] == "00001"
    assert handed_on["embed"]["rows"] == 3
    vectors = pq.read_table(killed_once["folder"].parents[2] / "vectors")
    assert vectors["embedding"].null_count == 0
    model, table, *stores = killed_once["events"]
    assert (model["task"], model["extra"]["version"]) == ("promote", "00001")
    assert (table["task"], table["extra"]["embedded"]) == ("embed", 3)
    assert model["extra"]["run_folder"] == str(killed_once["folder"])
    made = {store["uri"]: store["extra"]["rows"] for store in stores}
    names = ("store", "lancedb/documents")
    assert made == {f"x-sentence-encoder://{DAG}/{name}": 3 for name in names}


def write_worse_run(run: Path, folder: Path) -> None:
    """Writes a run of another model, measured on the same texts as a run's, with less success."""
    shutil.copytree(run, folder)
    (folder / "model" / "another").touch()
    observed = read_observations(folder / OBSERVATIONS)
    observed["retrieval"].values["ndcg@10"][:] = 0.0
    write_observations(folder / OBSERVATIONS, observed)
    metrics = storage.read_json(folder / "metrics.json")
    metrics["after"]["retrieval"]["ndcg@10"] = 0.0
    metrics["measured"]["model_digest"] = model_digest(folder / "model")
    metrics["measured"]["observations"] = digest_observations(folder / OBSERVATIONS)
    storage.write_json(folder / "metrics.json", metrics)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def afterwards(chain, killed_once) -> tuple[dict[str, Any], ...]:
    """What was in service before, a run in which nothing is new, and one of a worse model."""
    before = content(killed_once["served"])
    write_worse_run(killed_once["folder"], killed_once["folder"].with_name("second"))
    again = request("again", *SETTINGS, skip="prepare|clean")
    second = request("second", skip="prepare|train|evaluate|clean")
    return (before, *chain(again, second))


# Skipped tasks, a gate that refuses and its alert are those of EMR Serverless and of Kubernetes in
# test_clouds.py, and the exit codes those in tests/jobs, tests/promotion and tests/publishing.
@pytest.mark.matrix
def test_where_nothing_is_new_nothing_is_trained_or_embedded(afterwards, killed_once):
    _, found, _ = afterwards
    assert found["state"] == "success", found["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 1],
        "train": ["skipped", 1],
        "evaluate": ["skipped", 0],
        "promote": ["skipped", 0],
        "embed": ["skipped", 1],
        "publish": ["skipped", 1],
        "clean": ["success", 1],
    }
    assert "run.only_new: the model in service, 00001, was trained with the same" in found["output"]
    assert len(found["events"]) == len(killed_once["events"])
    assert not found["folder"].exists()


@pytest.mark.matrix
def test_the_gate_ends_the_run_and_leaves_the_model_in_service(afterwards):
    before, _, found = afterwards
    assert found["state"] == "failed", found["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 1],
        "train": ["success", 1],
        "evaluate": ["success", 1],
        "promote": ["failed", 1],
        "embed": ["upstream_failed", 0],
        "publish": ["upstream_failed", 0],
        "clean": ["success", 1],
    }
    verdict = json.loads((found["folder"] / "promotion.json").read_text())
    assert verdict["promoted"] is False
    assert content(found["served"]) == before
    (line,) = found["alerts"]
    why = "(exit code 3: the quality gate refuses the model)"
    assert line.endswith(f" promote refused: {verdict['refusals'][0]} {why}")
    assert line.startswith(f"{DAG} manual__")
