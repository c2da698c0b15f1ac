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
import pytest
from corpus_factory import only_retrieval, small_config
from local_servers import Chat, Workspace, serving

from pipelines.files import storage
from pipelines.settings.load import dump

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["prepare", "train", "evaluate", "promote"]
STEPS = 400


SUBMITTED = "Cannot execute: spark-submit --conf a=b jobs/promote.py. Error code is: {}."
ON_KUBERNETES = SUBMITTED + " Kubernetes spark exit code is: {}"
ON_DATABRICKS = "promote failed with terminal state: {{}} and with the errors [{{'error': '{}'}}]"
# What the retry policy is to say of an error with such a message.
DECISIONS = {
    SUBMITTED.format(1): "default",
    SUBMITTED.format(2): "fail",
    SUBMITTED.format(3): "fail",
    SUBMITTED.format(137): "default",
    SUBMITTED.format(23): "default",
    ON_KUBERNETES.format(0, 3): "fail",
    ON_KUBERNETES.format(1, 3): "fail",
    ON_KUBERNETES.format(0, 1): "default",
    SUBMITTED.format(1) + "\nLast spark-submit output:\nSystemExit: 3": "default",
    ON_DATABRICKS.format("SystemExit: 3"): "fail",
    ON_DATABRICKS.format("SystemExit: 1"): "default",
    ON_DATABRICKS.format("Cluster 3 was terminated"): "default",
    "": "default",
}


@pytest.fixture(scope="module")
def described(ask_airflow) -> dict[str, Any]:
    return ask_airflow("describe", json.dumps(list(DECISIONS)))


def test_the_files_are_read_without_errors_and_without_heavy_imports(described):
    assert described["errors"] == {}
    assert sorted(described["dags"]) == ["sentence_encoder_databricks", "sentence_encoder_spark"]
    heavy = {"pipelines", "pyspark", "tensorflow", "torch", "pandas", "numpy", "pyarrow"}
    assert heavy.isdisjoint(described["modules"])
    assert described["variables_read"] == []


def test_every_dag_and_task_keeps_to_the_rules(described):
    for dag in described["dags"].values():
        assert dag["catchup"] is False
        assert dag["max_active_runs"] == 1
        assert dag["tags"]
        assert "docs/airflow.md" in dag["doc"]
        assert dag["timeout"] > 0
        assert dag["params"] == ["config", "overrides", "run"]
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
            assert task["retry_policy"] == "RetryWhatMayPass"
            assert task["alert"] == ["Alert"]
            assert task["rule"] == "all_success"
            place = STAGES.index(name)
            assert task["after"] == STAGES[place - 1 : place] if place else not task["after"]


def test_only_what_another_try_may_mend_is_tried_again(described):
    assert dict(zip(DECISIONS, described["decisions"], strict=True)) == DECISIONS


def test_databricks_is_sent_the_jobs_and_a_lost_cluster_is_tried_again(ask_airflow):
    submitted: list[dict] = []
    lines: list[str] = []
    errors = {
        "sentence-encoder-prepare": ["Cluster was terminated"],
        "sentence-encoder-evaluate": ["SystemExit: 2"],
    }
    with (
        serving(Chat, lines=lines) as chat,
        serving(Workspace, submitted=submitted, errors=errors, ended={}) as workspace,
    ):
        variable = {
            "config": "/dbfs/jobs/captions.yaml",
            "runs": "/dbfs/runs",
            "jobs": "/Workspace/Repos/encoders/jobs",
            "databricks": {"existing_cluster_id": "1122-334455-abcdefgh"},
            "overrides": ["training.workers=2"],
            "alert": "chat",
        }
        found = ask_airflow(
            "run",
            "sentence_encoder_databricks",
            json.dumps({"overrides": ["training.workers=4"]}),
            AIRFLOW_VAR_SENTENCE_ENCODER=json.dumps(variable),
            AIRFLOW_CONN_CHAT=json.dumps({"conn_type": "http", **chat}),
            AIRFLOW_CONN_DATABRICKS_DEFAULT=json.dumps(
                {"conn_type": "databricks", "password": "token", **workspace}
            ),
        )
    assert found["state"] == "failed", found["output"][-3000:]
    assert found["tasks"] == {
        "prepare": ["success", 2],
        "train": ["success", 1],
        "evaluate": ["failed", 1],
        "promote": ["upstream_failed", 0],
    }
    names = [f"sentence-encoder-{stage}" for stage in ("prepare", "prepare", "train", "evaluate")]
    assert [run["run_name"] for run in submitted] == names
    train = submitted[2]
    assert train["existing_cluster_id"] == "1122-334455-abcdefgh"
    assert train["timeout_seconds"] == str(24 * 3600)
    task = train["spark_python_task"]
    assert task["python_file"] == "/Workspace/Repos/encoders/jobs/train.py"
    flags, settings = task["parameters"][::2], task["parameters"][1::2]
    assert flags == ["--config", "--set", "--set", "--set", "--set"]
    assert settings[:3] == ["/dbfs/jobs/captions.yaml", "training.workers=2", "training.workers=4"]
    assert settings[3].startswith("run.folder=/dbfs/runs/sentence_encoder_databricks/manual__")
    assert settings[4] == "training.resume=true"
    assert [run["spark_python_task"]["parameters"] for run in submitted] == 4 * [task["parameters"]]
    (line,) = lines
    assert "evaluate failed: evaluate failed with terminal state" in line
    assert "SystemExit: 2" in line


@pytest.fixture(scope="module")
def chain(prepared, tmp_path_factory, ask_airflow) -> Callable[..., dict[str, Any]]:
    """Runs the Spark DAG on the small corpus, with more overrides, and tells all about it."""
    folder = tmp_path_factory.mktemp("chain")
    config = only_retrieval(small_config(prepared, engine="local", workers=1, framework="torch"))
    promotion = config.promotion.model_copy(update={"target": str(folder / "served")})
    (folder / "small.yaml").write_text(dump(config.model_copy(update={"promotion": promotion})))
    variable = {
        "config": str(folder / "small.yaml"),
        "runs": str(folder / "runs"),
        "conf": {
            "spark.pyspark.python": sys.executable,
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        },
        "alert": "chat",
    }

    def run(name: str, *overrides: str, skip: str = "") -> dict[str, Any]:
        lines: list[str] = []
        with serving(Chat, lines=lines) as chat:
            found = ask_airflow(
                "run",
                "sentence_encoder_spark",
                json.dumps({"run": name, "overrides": overrides}),
                skip,
                AIRFLOW_VAR_SENTENCE_ENCODER=json.dumps(variable),
                AIRFLOW_CONN_CHAT=json.dumps({"conn_type": "http", **chat}),
            )
        run_folder = folder / "runs" / "sentence_encoder_spark" / name
        return found | {"alerts": lines, "folder": run_folder, "served": folder / "served"}

    run.folder = folder
    return run


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
    every, stopped = 50, threading.Event()
    run_folder = chain.folder / "runs" / "sentence_encoder_spark" / "first"
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_training, run_folder, every + 10, stopped)
        try:
            found = chain(
                "first",
                f"training.max_steps={STEPS}",
                "training.epochs=99",
                f"training.checkpoint_every={every}",
            )
        finally:
            stopped.set()
    return found | {"killed": killed.result(10), "every": every}


def test_a_killed_training_goes_on_and_its_model_is_promoted(killed_once):
    found, run_folder, every = killed_once, killed_once["folder"], killed_once["every"]
    assert found["state"] == "success", found["output"][-5000:]
    tries = {name: tries for name, (_, tries) in found["tasks"].items()}
    assert tries == {"prepare": 1, "train": 2, "evaluate": 1, "promote": 1}
    assert found["alerts"] == []
    (lines,) = found["killed"]
    last = (run_folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in last] == list(range(1, STEPS + 1))
    # Rates differ at every try: lines that are the same were written by the try that was killed.
    kept = sum(old == new for old, new in zip(lines, last, strict=False))
    assert kept >= every
    assert kept % every == 0
    record = json.loads((found["served"] / "versions/00001/promotion.json").read_text())
    assert record["run"] == str(run_folder)
    assert (found["served"] / "current").readlink() == Path("versions/00001")


def write_worse_run(run: Path, folder: Path) -> None:
    """Writes a run of another model, measured on the same texts as a run's, with less success."""
    shutil.copytree(run, folder)
    (folder / "model" / "README.md").write_text("Another model.\n")
    metrics = storage.read_json(folder / "metrics.json")
    metrics["after"]["retrieval"]["ndcg@10"] = 0.0
    metrics["measured"]["model"] = storage.digest_folder(folder / "model")
    storage.write_json(folder / "metrics.json", metrics)


def test_the_gate_ends_the_run_and_leaves_the_model_in_service(chain, killed_once):
    served = killed_once["served"]
    before = {path: path.read_bytes() for path in served.rglob("*") if path.is_file()}
    write_worse_run(killed_once["folder"], killed_once["folder"].with_name("second"))
    found = chain("second", skip="prepare|train|evaluate")
    assert found["state"] == "failed", found["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 1],
        "train": ["success", 1],
        "evaluate": ["success", 1],
        "promote": ["failed", 1],
    }
    verdict = json.loads((found["folder"] / "promotion.json").read_text())
    assert verdict["promoted"] is False
    assert {path: path.read_bytes() for path in served.rglob("*") if path.is_file()} == before
    (line,) = found["alerts"]
    assert line.endswith(f" promote refused: {verdict['refusals'][0]}")
    assert line.startswith("sentence_encoder_spark manual__")
