"""What the DAGs of other clouds submit, and what becomes of their tasks when the jobs end."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from local_clouds import Emr, EmrServerless, Kubernetes, ended, kube_config, option, stage_of
from local_servers import Chat, Workspace, serving

from pipelines.errors import NothingNew

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("databricks", "emr", "emr_serverless", "kubernetes")
SERVERS = dict(zip(KINDS, (Workspace, Emr, EmrServerless, Kubernetes), strict=True))
STAGES = ["prepare", "train", "evaluate", "promote", "embed", "publish", "clean"]
FIGURES = {"after": {"retrieval": {"ndcg@10": 43.1}}}
PUBLISHED = {"store": "qdrant", "name": "articles", "rows": 10}
PROMOTED = {"version": "00007", "figures": {"retrieval.ndcg@10": 43.1}}
NOTHING_NEW = "run.only_new: the model in service, 00006, was trained with the same settings"
REFUSAL = "promotion.minimum: retrieval.ndcg@10 is 1.0000, and the minimum is 2.0000."
# What becomes of the tries: on EMR a node was lost once; in Serverless nothing is new; on
# Kubernetes the gate refuses, and the outcome of a job that went well cannot be read.
ENDS = {
    "emr": {
        "train": [{"exit_code": 1, "error": "engine torch, rank 1: the host is gone"}],
        "evaluate": [{"results": FIGURES}],
        "promote": [{"results": PROMOTED}],
        "embed": [{"results": {"rows": 10}}],
        "publish": [{"results": PUBLISHED}],
    },
    "emr_serverless": {
        "train": [{"exit_code": NothingNew.exit_code, "error": NOTHING_NEW}],
        "embed": [{"results": {"rows": 12}}],
        "publish": [{"exit_code": NothingNew.exit_code, "error": NOTHING_NEW}],
    },
    "kubernetes": {
        "prepare": [{"lost": True}],
        "train": [{"results": {"final_loss": float("nan")}}],
        "promote": [{"exit_code": 3, "error": REFUSAL}],
    },
}
# On Databricks the messages of failed runs have to do.
ERRORS = {
    "sentence-encoder-prepare": ["Cluster was terminated"],
    "sentence-encoder-evaluate": ["SystemExit: 2"],
}


def variable(runs: str) -> dict[str, Any]:
    """The Airflow variable of a deployment that has clusters of all kinds."""
    monitoring = {"managedPersistenceMonitoringConfiguration": {"enabled": True}}
    gpu = {"name": "nvidia.com/gpu", "quantity": 1}
    return {
        "config": "/lake/captions.yaml",
        "runs": runs,
        "jobs": "/lake/jobs",
        "alert": "chat",
        "overrides": ["training.workers=2"],
        "conf": {"spark.executor.memory": "4g", "spark.speculation": False},
        "databricks": {"new_cluster": {"spark_version": "15.4.x-scala2.12", "num_workers": 2}},
        "emr": {"cluster": "j-1"},
        "emr_serverless": {
            "application": "00abc",
            "role": "arn:aws:iam::123456789012:role/encoders",
            "configuration": {"monitoringConfiguration": monitoring},
        },
        "kubernetes": {
            "namespace": "encoders",
            "spec": {
                "image": "registry.local/encoders:1",
                "driver": {"serviceAccount": "spark", "cores": 1, "memory": "2g"},
                "executor": {"instances": 2, "cores": 2, "memory": "4g"},
            },
        },
        "stages": {
            "train": {
                "conf": {"spark.executor.memory": "8g", "spark.task.cpus": 2},
                "overrides": ["training.precision=bf16"],
                "kubernetes": {"spec": {"executor": {"instances": 4, "gpu": gpu}}},
                "databricks": {"new_cluster": {"num_workers": 4}},
            },
            "embed": {"overrides": ["embedding.inputs=[/lake/a b.parquet]"]},
            "publish": {"overrides": ["publish.store=qdrant"]},
        },
    }


def write_outcome(run: dict[str, Any]) -> None:
    """On Databricks, Airflow reaches the outcome of the training alone."""
    arguments = run["spark_python_task"]["parameters"]
    if stage_of(arguments) == "train":
        ended({"train": [{"results": {"steps": 7}}]}, arguments)


@pytest.fixture(scope="module")
def clouds(ask_airflow, tmp_path_factory) -> dict[str, Any]:
    """A run of each DAG: what was submitted, and what became of it."""
    runs = tmp_path_factory.mktemp("runs")
    submitted: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    lines: list[str] = []
    deleted: list[str] = []
    with ExitStack() as stack:
        chat = stack.enter_context(serving(Chat, lines=lines))
        places = {
            kind: stack.enter_context(
                serving(
                    server,
                    submitted=submitted[kind],
                    ends=json.loads(json.dumps(ENDS.get(kind, {}))),
                    errors=json.loads(json.dumps(ERRORS)),
                    **{
                        "deleted": deleted,
                        "states": {},
                        "codes": {},
                        "ended": {},
                        "asked": Counter(),
                        "finish": staticmethod(write_outcome),
                    },
                )
            )
            for kind, server in SERVERS.items()
        }
        conf = {"overrides": ["training.workers=4"]}
        answer = ask_airflow(
            "run",
            *(json.dumps({"dag": f"sentence_encoder_{kind}", "conf": conf}) for kind in KINDS),
            AIRFLOW_VAR_SENTENCE_ENCODER=json.dumps(variable(str(runs))),
            AIRFLOW_CONN_CHAT=json.dumps({"conn_type": "http", **chat}),
            AIRFLOW_CONN_DATABRICKS_DEFAULT=json.dumps(
                {"conn_type": "databricks", "password": "token", **places["databricks"]}
            ),
            AIRFLOW_CONN_AWS_DEFAULT=json.dumps({"conn_type": "aws"}),
            AIRFLOW_CONN_KUBERNETES_DEFAULT=json.dumps(
                {
                    "conn_type": "kubernetes",
                    "extra": {"kube_config": kube_config(places["kubernetes"])},
                }
            ),
            AWS_ENDPOINT_URL_EMR=f"http://127.0.0.1:{places['emr']['port']}",
            AWS_ENDPOINT_URL_EMR_SERVERLESS=f"http://127.0.0.1:{places['emr_serverless']['port']}",
            AWS_ACCESS_KEY_ID="key",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_DEFAULT_REGION="eu-central-1",
        )
    found = dict(zip(KINDS, answer["runs"], strict=True))
    return found | {
        "submitted": submitted,
        "alerts": lines,
        "deleted": deleted,
        "runs": runs,
        "output": answer["output"],
    }


def check_arguments(arguments: list[str], clouds: dict[str, Any], kind: str, number: int) -> None:
    """The command line of the training, the same on all clusters."""
    flags = [one for one in arguments if one.startswith("--")]
    assert flags == ["--config", *["--set"] * 6, "--outcome"]
    settings = [value for flag, value in pairwise(arguments) if flag == "--set"]
    # The later one wins: the variable, the stage, the run.
    assert settings[:3] == ["training.workers=2", "training.precision=bf16", "training.workers=4"]
    assert option(arguments, "--config") == "/lake/captions.yaml"
    folder = settings[3].removeprefix("run.folder=")
    assert folder.startswith(f"{clouds['runs']}/sentence_encoder_{kind}/manual__")
    assert settings[4:] == ["training.resume=true", "run.only_new=true"]
    assert option(arguments, "--outcome") == f"{folder}.outcomes/train-{number}.json"


def test_databricks_is_sent_the_jobs_and_a_lost_cluster_is_tried_again(clouds):
    found, submitted = clouds["databricks"], clouds["submitted"]["databricks"]
    assert found["state"] == "failed", clouds["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 2],
        "train": ["success", 1],
        "evaluate": ["failed", 1],
        "promote": ["upstream_failed", 0],
        "embed": ["upstream_failed", 0],
        "publish": ["upstream_failed", 0],
        "clean": ["success", 1],
    }
    names = ("prepare", "prepare", "train", "evaluate", "clean")
    assert [run["run_name"] for run in submitted] == [f"sentence-encoder-{name}" for name in names]
    train = submitted[2]
    assert train["timeout_seconds"] == str(24 * 3600)
    clusters = [run["new_cluster"]["num_workers"] for run in submitted]
    assert clusters == ["2", "2", "4", "2", "2"]
    assert train["new_cluster"]["spark_version"] == "15.4.x-scala2.12"
    assert train["spark_python_task"]["python_file"] == "/lake/jobs/train.py"
    check_arguments(train["spark_python_task"]["parameters"], clouds, "databricks", 1)
    # Nobody waits for a run but the triggerer, and what is found out afterwards is handed on.
    assert clouds["output"].count("running trigger in line") == len(submitted)
    assert found["xcom"]["train"]["outcome"] == {"steps": 7}
    (line,) = [line for line in clouds["alerts"] if "databricks" in line]
    assert "evaluate failed: Job run failed with terminal state" in line
    assert "SystemExit: 2" in line
    assert line.endswith("(exit code 2: correct the settings or the input)")


def test_emr_is_sent_steps_and_figures_come_back(clouds):
    found, submitted = clouds["emr"], clouds["submitted"]["emr"]
    assert found["state"] == "success", clouds["output"][-5000:]
    tries = {name: [("success"), 2 if name == "train" else 1] for name in STAGES}
    assert found["tasks"] == tries
    assert {one["JobFlowId"] for one in submitted} == {"j-1"}
    steps = [step for one in submitted for step in one["Steps"]]
    stages = [stage_of(step["HadoopJarStep"]["Args"]) for step in steps]
    assert stages == ["prepare", "train", *STAGES[1:]]
    step = steps[2]
    assert step["Name"] == "sentence-encoder-train"
    assert step["ActionOnFailure"] == "CONTINUE"
    command = step["HadoopJarStep"]["Args"]
    assert step["HadoopJarStep"]["Jar"] == "command-runner.jar"
    assert command[:5] == ["timeout", "86400", "spark-submit", "--deploy-mode", "client"]
    place = command.index("/lake/jobs/train.py")
    assert command[5:place] == [
        *("--conf", "spark.executor.memory=8g"),
        *("--conf", "spark.speculation=false"),
        *("--conf", "spark.task.cpus=2"),
    ]
    check_arguments(command[place + 1 :], clouds, "emr", 2)
    xcom = {name: values.get("outcome") for name, values in found["xcom"].items()}
    assert (xcom["evaluate"], xcom["promote"]) == (FIGURES, PROMOTED)
    # The service says of a failed step that the error is unknown; the log has the job's own line.
    assert "engine torch, rank 1: the host is gone (exit code 1)" in clouds["output"]
    assert not [line for line in clouds["alerts"] if "sentence_encoder_emr " in line]


def test_assets_are_updated_by_what_was_made(clouds):
    runs = f"{clouds['runs']}/sentence_encoder"
    # Of all runs, since it is the last one; and of those of other tests with the same Airflow.
    found = clouds["kubernetes"]["events"]
    events = [event for event in found if event["dag"].removeprefix("sentence_encoder_") in KINDS]
    made = {event["uri"]: event["extra"] for event in events}
    tasks = [event["task"] for event in events]
    assert tasks == ["promote", "embed", "publish", "publish", "embed"]
    folder = made["x-sentence-encoder://sentence_encoder_emr/model"].pop("run_folder")
    assert folder.startswith(f"{runs}_emr/manual__")
    assert made["x-sentence-encoder://sentence_encoder_emr/model"] == PROMOTED
    assert made["x-sentence-encoder://sentence_encoder_emr/vectors"]["rows"] == 10
    assert made["x-sentence-encoder://sentence_encoder_emr_serverless/vectors"]["rows"] == 12
    for name in ("store", "qdrant/articles"):
        store = made[f"x-sentence-encoder://sentence_encoder_emr/{name}"]
        assert store.pop("run_folder") == folder
        assert store == PUBLISHED


def test_emr_serverless_skips_what_is_not_new_and_embeds(clouds):
    found, submitted = clouds["emr_serverless"], clouds["submitted"]["emr_serverless"]
    assert found["state"] == "success", clouds["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 1],
        "train": ["skipped", 1],
        "evaluate": ["skipped", 0],
        "promote": ["skipped", 0],
        "embed": ["success", 1],
        "publish": ["skipped", 1],
        "clean": ["success", 1],
    }
    assert NOTHING_NEW in clouds["output"]
    train = submitted[1]
    assert train["path"] == "/applications/00abc/jobruns"
    assert train["executionRoleArn"] == "arn:aws:iam::123456789012:role/encoders"
    assert train["executionTimeoutMinutes"] == 24 * 60
    assert "monitoringConfiguration" in train["configurationOverrides"]
    spark = train["jobDriver"]["sparkSubmit"]
    assert spark["entryPoint"] == "/lake/jobs/train.py"
    assert spark["sparkSubmitParameters"] == (
        "--conf spark.executor.memory=8g --conf spark.speculation=false --conf spark.task.cpus=2"
    )
    check_arguments(spark["entryPointArguments"], clouds, "emr_serverless", 1)
    # Each try has a token of its own: with that of an earlier one EMR would start nothing.
    assert len({one["clientToken"] for one in submitted}) == len(submitted)
    embed = submitted[2]["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    settings = [value for flag, value in pairwise(embed) if flag == "--set"]
    assert settings[:4] == [
        *("embedding.served=true", "embedding.overwrite=true", "training.workers=2"),
        "embedding.inputs=[/lake/a b.parquet]",
    ]
    publish = submitted[3]["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    settings = [value for flag, value in pairwise(publish) if flag == "--set"]
    # The table is that of `embed`.
    assert settings[:3] == [
        *("training.workers=2", "embedding.inputs=[/lake/a b.parquet]", "publish.store=qdrant")
    ]


def test_kubernetes_is_sent_applications_and_the_gate_refuses(clouds):
    found, submitted = clouds["kubernetes"], clouds["submitted"]["kubernetes"]
    assert found["state"] == "failed", clouds["output"][-5000:]
    assert found["tasks"] == {
        "prepare": ["success", 1],
        "train": ["success", 1],
        "evaluate": ["success", 1],
        "promote": ["failed", 1],
        "embed": ["upstream_failed", 0],
        "publish": ["upstream_failed", 0],
        "clean": ["success", 1],
    }
    # What is no number is none, since databases do not take it.
    assert found["xcom"]["train"]["outcome"] == {"final_loss": None}
    assert found["xcom"]["prepare"] == {}
    assert "no outcome of the job can be read from here" in clouds["output"]
    (line,) = [line for line in clouds["alerts"] if "kubernetes" in line]
    assert line.endswith(
        f" promote refused: {REFUSAL} (exit code 3: the quality gate refuses the model)"
    )
    train = submitted[1]
    assert train["path"].endswith("/v1beta2/namespaces/encoders/sparkapplications")
    assert train["metadata"]["namespace"] == "encoders"
    assert train["metadata"]["name"].startswith("sentence-encoder-train-")
    spec = train["spec"]
    check_arguments(spec["arguments"], clouds, "kubernetes", 1)
    assert (spec["type"], spec["mode"], spec["restartPolicy"]) == (
        "Python",
        "cluster",
        {"type": "Never"},
    )
    assert spec["mainApplicationFile"] == "local:///lake/jobs/train.py"
    assert spec["image"] == "registry.local/encoders:1"
    assert spec["driver"]["serviceAccount"] == "spark"
    assert [one["spec"]["executor"]["instances"] for one in submitted] == [2, 4, 2, 2, 2]
    assert spec["executor"]["gpu"] == {"name": "nvidia.com/gpu", "quantity": 1}
    assert spec["executor"]["cores"] == 2
    assert spec["sparkConf"] == {
        "spark.executor.memory": "8g",
        "spark.speculation": "false",
        "spark.task.cpus": "2",
    }
    assert len(clouds["deleted"]) == len(submitted)


def test_the_version_of_spark_on_kubernetes_is_the_locked_one(clouds):
    (locked,) = re.findall(
        r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    assert {one["spec"]["sparkVersion"] for one in clouds["submitted"]["kubernetes"]} == {locked}
