"""The commands as a user types them: what comes out, and how bad input is refused."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small import small_config

from pipelines import storage, workflow
from pipelines.cli import main
from pipelines.config import dump
from pipelines.errors import InputError

PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def config_file(prepared, tmp_path) -> Path:
    """The small settings with the local engine, as a file."""
    config = small_config(prepared, engine="local", workers=1, max_steps=12)
    run = config.run.model_copy(update={"folder": str(tmp_path / "run")})
    path = tmp_path / "small.yaml"
    path.write_text(dump(config.model_copy(update={"run": run})))
    return path


def overrides(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


def test_train_and_evaluate_give_a_model_figures_and_a_report(config_file, tmp_path, capsys):
    from sentence_transformers import SentenceTransformer

    assert main(["train", "--config", str(config_file)]) == 0
    assert main(["evaluate", "--config", str(config_file)]) == 0
    run = tmp_path / "run"
    shown = capsys.readouterr().out
    assert "ndcg@10" in shown.lower()
    assert str(run / "report.html") in shown
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["training"]["steps"] == 12
    assert figures["before"]["retrieval"] != figures["after"]["retrieval"]
    assert SentenceTransformer(str(run / "model")).encode(["a text"]).shape == (1, 32)
    assert {"config.yaml", "environment.json", "metrics.jsonl", "report.html"} <= {
        path.name for path in run.iterdir()
    }

    assert main(["train", "--config", str(config_file)]) == 2
    assert "error: run.folder: " in capsys.readouterr().err
    other = overrides("training.resume=true", "training.seed=3")
    assert main(["train", "--config", str(config_file), *other]) == 2
    assert "error: training.seed: the run was begun with 17" in capsys.readouterr().err
    with (run / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 1')
    again = overrides("training.resume=true", "training.max_steps=16")
    assert main(["train", "--config", str(config_file), *again]) == 0
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 17))


def test_a_training_may_be_asked_for_again_whatever_became_of_it(
    config_file, tmp_path, capsys, caplog
):
    run = tmp_path / "run"
    settings = overrides("training.framework=torch", "training.max_steps=1", "training.resume=true")
    train = ["train", "--config", str(config_file), *settings]
    assert main(train) == 0
    model = storage.digest_folder(run / "model")
    assert main(train) == 0
    assert "the run has made its 1 steps already" in caplog.text
    assert storage.digest_folder(run / "model") == model
    # Killed while the run folder was made.
    plan, settings_file = (run / "checkpoints" / "plan.json"), (run / "config.yaml")
    kept = {path: path.read_bytes() for path in (plan, settings_file)}
    shutil.rmtree(run)
    plan.parent.mkdir(parents=True)
    settings_file.write_bytes(kept[settings_file])
    assert main(train) == 2
    assert "holds other files" in capsys.readouterr().err
    plan.write_bytes(kept[plan])
    assert main(train) == 0
    assert storage.digest_folder(run / "model") == model


def test_a_bag_is_trained_and_measured_too(config_file, tmp_path):
    from sentence_transformers import SentenceTransformer

    bag = overrides("encoder.kind=bag", "encoder.hidden=64", "training.learning_rate=0.02")
    assert main(["train", "--config", str(config_file), *bag]) == 0
    assert main(["evaluate", "--config", str(config_file), *bag]) == 0
    run = tmp_path / "run"
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["after"]["retrieval"] != figures["before"]["retrieval"]
    assert "mean of its tokens' static embeddings of 64" in (run / "model/README.md").read_text()
    assert "random, a bag of token embeddings of 64" in (run / "report.html").read_text()
    assert SentenceTransformer(str(run / "model")).encode(["a text"]).shape == (1, 64)


def write_nothing(path: Path) -> None:
    path.write_text("")


def write_no_parquet(path: Path) -> None:
    path.write_text("just text\n")


def write_few(path: Path) -> None:
    pq.write_table(pa.table({"sentence1": ["one text"], "sentence2": ["another text"]}), path)


@pytest.mark.parametrize(
    ("name", "write", "settings", "message"),
    [
        ("absent.parquet", None, ["corpus.format=parquet"], "corpus.inputs: "),
        ("empty.jsonl", write_nothing, ["corpus.format=jsonl"], "corpus.inputs: "),
        ("fake.parquet", write_no_parquet, ["corpus.format=parquet"], "corpus.inputs: "),
        (
            "few.parquet",
            write_few,
            ["corpus.format=parquet", "corpus.pairs=columns", "corpus.min_characters=3"],
            "lanes.granule: 1 examples do not fill a row",
        ),
        ("absent.parquet", None, ["corpus.frmat=parquet"], "corpus.frmat: there is no such"),
    ],
)
def test_bad_corpora_are_refused_in_one_line(
    spark, tmp_path, capsys, name, write, settings, message
):
    if write:
        write(tmp_path / name)
    settings = [
        f"corpus.inputs=[{tmp_path / name}]",
        f"prepared.folder={tmp_path / 'prepared'}",
        "corpus.evaluation_share=0",
        *settings,
    ]
    assert main(["prepare", *overrides(*settings)]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert errors[0].startswith(f"error: {message}")
    assert not (tmp_path / "prepared" / "lanes").exists()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.workers=8", "training.granules_per_step=8"], "training.workers: 8 workers"),
        (["training.granules_per_step=3"], "training.granules_per_step: 3 does not divide"),
        (["training.engine=none"], "training.engine: there is no engine `none`"),
        (["training.mode=hogwild"], "training.mode: engine local has no `hogwild`"),
        (["training.feed=spark"], "training.feed: engine local has no `spark`"),
        (["training.compression=fp16"], "training.compression: engine local does not know it"),
        (["training.elastic=true"], "training.elastic: engine local does not know it, leave it f"),
        (["prepared.folder=nowhere"], "prepared.folder: there are no lanes"),
        (["encoder.start=nowhere"], "encoder.start: there is no folder nowhere"),
        (
            ["objective.name=cosine_regression", "corpus.score_column=s", "corpus.pairs=columns"],
            "objective.name: the lanes hold no scores",
        ),
    ],
)
def test_what_does_not_fit_the_lanes_is_refused(config_file, tmp_path, capsys, settings, message):
    assert main(["train", "--config", str(config_file), *overrides(*settings)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()


def test_a_wrong_command_line_is_refused(capsys):
    assert main(["train", "--confg", "x"]) == 2
    assert main(["benchmark", "nothing"]) == 2
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["error:"] * 2


def spark_submit(*arguments: str | Path) -> subprocess.Popen:
    import pyspark

    return subprocess.Popen(
        [Path(pyspark.__file__).parent / "bin" / "spark-submit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | dict.fromkeys(PYTHON_VARIABLES, sys.executable),
    )


def test_spark_submit_runs_the_jobs(prepared, tmp_path):
    config = small_config(prepared, max_steps=4)
    run = config.run.model_copy(update={"folder": str(tmp_path / "run")})
    (tmp_path / "small.yaml").write_text(dump(config.model_copy(update={"run": run})))
    done = spark_submit(
        *("--master", "local-cluster[2,1,1024]", ROOT / "jobs" / "train.py"),
        *("--config", tmp_path / "small.yaml"),
    )
    said, _ = done.communicate(timeout=300)
    assert done.returncode == 0, said[-2000:]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


def command_line(process: psutil.Process) -> str:
    """Empty for a process that has ended, whether or not somebody has asked how."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_a_job_ends_with_the_spark_submit_that_is_killed(config_file, tmp_path):
    endless = overrides(
        "training.framework=torch", "training.epochs=99999", "training.max_steps=99999"
    )
    submitted = spark_submit(
        *("--master", "local[1]", ROOT / "jobs" / "train.py", "--config", config_file, *endless)
    )
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists():
        assert submitted.poll() is None, submitted.stdout.read()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(submitted.pid).children(recursive=True)
    # Among them are helpers of a moment, which may end while they are looked at.
    drivers = [child for child in children if command_line(child)]
    assert any("train.py" in command_line(driver) for driver in drivers)
    submitted.kill()
    _, alive = psutil.wait_procs(drivers, timeout=20)
    for driver in alive:
        driver.kill()
    submitted.communicate(timeout=20)
    assert alive == []


def test_a_folder_with_other_files_is_refused_before_anything_is_prepared(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    config = small_config(tmp_path / "prepared", engine="local")
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"folder": str(tmp_path / "run")})}
    )
    with pytest.raises(InputError, match=r"^run\.folder: .* holds other files"):
        workflow.run(config)
    assert not (tmp_path / "prepared").exists()
