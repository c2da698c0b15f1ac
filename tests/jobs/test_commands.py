"""The commands as a user types them: what comes out, and how bad input is refused."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextvars import Context
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import only_retrieval, small_config

import pipelines
from pipelines.catalog import FORMATS
from pipelines.cli import main
from pipelines.errors import EngineUnavailable, InputError, PipelineError
from pipelines.files.locks import held
from pipelines.jobs.delete import delete
from pipelines.jobs.prepare import check_prepared_folder
from pipelines.models.identity import CARD_FILE, model_digest
from pipelines.settings.load import dump

# How the engine starts a worker has tests of its own.
pytestmark = pytest.mark.usefixtures("warm_workers")

PYTHON_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def config_file(prepared, tmp_path) -> Path:
    """The small settings with the local engine, as a file."""
    config = small_config(prepared, engine="local", framework="torch", workers=1, max_steps=12)
    path = tmp_path / "small.yaml"
    path.write_text(dump(only_retrieval(config).changed("run", folder=str(tmp_path / "run"))))
    return path


JOBS = {
    "train": ("run.folder", "prepared.folder"),
    "evaluate": ("run.folder",),
    "prepare": ("prepared.folder",),
    "run": ("run.folder", "prepared.folder"),
}


@pytest.mark.parametrize(("job", "key"), [(job, key) for job in JOBS for key in JOBS[job]])
def test_one_job_at_a_time_in_a_folder(tmp_path, job, key):
    """Refused before anything is read, and before Spark starts."""
    config = small_config(tmp_path / "prepared", engine="local")
    config = config.changed("run", folder=str(tmp_path / "run"), overwrite=True)
    folder = tmp_path / key.partition(".")[0]
    folder.mkdir()
    with held(folder / ".lock", "train"):
        told = rf"^{key}: {folder} is in use by `train`, process {os.getpid()} on .*\. Wait for "
        with pytest.raises(PipelineError, match=told) as refused:
            Context().run(getattr(pipelines, job), config)
        # A scheduler tries again what ends with 1, and not what ends with 2.
        assert not isinstance(refused.value, InputError)


@pytest.mark.parametrize("job", JOBS)
def test_what_the_system_says_of_a_folder_is_one_line(tmp_path, job):
    long = str(tmp_path / ("long" * 100))
    config = small_config(tmp_path, engine="local").changed("run", folder=long)
    config = config.changed("prepared", folder=long)
    with pytest.raises(PipelineError, match=r"ing failed: File name too long \("):
        getattr(pipelines, job)(config)


@pytest.mark.parametrize("job", ["train", "run"])
def test_a_library_that_is_missing_is_told_before_spark_starts(tmp_path, monkeypatch, job):
    monkeypatch.setattr("pipelines.engines.horovod.engine.is_installed", lambda name: False)
    config = small_config(tmp_path, engine="horovod", framework="torch", workers=1)
    config = config.changed("run", folder=str(tmp_path / "run"))
    with pytest.raises(EngineUnavailable, match=r"^training\.engine: horovod is not installed\. "):
        getattr(pipelines, job)(config)
    assert not (tmp_path / "run").exists()


def overrides(*pairs: str) -> list[str]:
    return [part for pair in pairs for part in ("--set", pair)]


def check_jobs(run: Path, config_file: Path) -> None:
    """All jobs have noted themselves, and the page shows them."""
    jobs = json.loads((run / "jobs.json").read_text())
    assert [stage["name"] for stage in jobs["preparation"]] == ["corpus", "tokens", "lanes"]
    of_file = f"--config {config_file}"
    commands = [
        f"train {of_file}",
        f"evaluate {of_file}",
        f"train {of_file} --set training.resume=true",
    ]
    for command, job in zip(commands, jobs["jobs"], strict=True):
        assert job["command"] == f"sentence-pipelines {command}"
        assert job["seconds"] > 0
        # Also the one that has drawn the page.
        assert f"{job['name']}: {job['began'][:10]}" in (run / "report.html").read_text()
    assert "has not ended" not in (run / "report.html").read_text()


def test_train_and_evaluate_give_a_model_figures_and_a_report(config_file, tmp_path, capsys):
    from huggingface_hub import ModelCard
    from sentence_transformers import SentenceTransformer

    run = tmp_path / "run"
    assert main(["train", "--config", str(config_file)]) == 0
    told = capsys.readouterr().out.split()
    assert told == ["report", str(run / "report.html"), "model", str(run / "model")]
    assert main(["evaluate", "--config", str(config_file)]) == 0
    shown = capsys.readouterr().out
    assert "ndcg@10" in shown.lower()
    assert str(run / "report.html") in shown
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["training"]["steps"] == 12
    assert figures["before"]["retrieval"] != figures["after"]["retrieval"]
    assert set(figures["interval"]["retrieval"]) == {"ndcg@10", "mrr@10", "recall@1", "recall@10"}
    assert SentenceTransformer(str(run / "model")).encode(["a text"]).shape == (1, 32)
    card = (run / "model" / CARD_FILE).read_text()
    results = {one.metric_type: one.metric_value for one in ModelCard(card).data.eval_results}
    assert results["cosine_ndcg@10"] == round(figures["after"]["retrieval"]["ndcg@10"] / 100, 6)
    assert "kept: pairs for training |" in card
    assert "W for a busy logical CPU" in card
    assert model_digest(run / "model") == figures["measured"]["model_digest"]
    target = tmp_path / "served"
    promoted = overrides(f"promotion.target={target}")
    assert main(["promote", "--config", str(config_file), *promoted]) == 0
    assert (target / "current" / CARD_FILE).read_text() == card
    # Nothing is left to be done, and the figures are those of this model.
    asked = ["train", "--config", str(config_file), *overrides("training.resume=true")]
    assert main(asked) == 0
    assert (run / "model" / CARD_FILE).read_text() == card
    capsys.readouterr()
    assert {"config.yaml", "environment.json", "tokens.json", "metrics.jsonl", "report.html"} <= {
        path.name for path in run.iterdir()
    }
    check_jobs(run, config_file)

    assert main(["train", "--config", str(config_file)]) == 2
    assert "error: run.folder: " in capsys.readouterr().err
    other = overrides("training.resume=true", "training.seed=3")
    assert main(["train", "--config", str(config_file), *other]) == 2
    assert "error: training.seed: the run was begun with 17" in capsys.readouterr().err
    with (run / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 1')
    again = overrides("training.resume=true", "training.max_steps=16")
    assert main(["train", "--config", str(config_file), *again]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 17))
    rates = [line["learning_rate"] for line in lines]
    # A run that had come to its end rises and falls once more.
    assert rates[11:] == pytest.approx([2e-4, 2e-3, 2e-3, 2e-3 * 2 / 3, 2e-3 / 3])
    history = json.loads((run / "history.json").read_text())
    assert [(chapter["step"], chapter["last_step"]) for chapter in history] == [(0, 12), (12, 16)]
    assert history[1]["settings"]["training.max_steps"] == 16
    assert "no evaluation yet" in (run / "model" / CARD_FILE).read_text()


def test_a_training_may_be_asked_for_again_whatever_became_of_it(
    config_file, tmp_path, capsys, caplog
):
    run = tmp_path / "run"
    changes = ("max_steps=4", "checkpoint_every=2", "resume=true")
    settings = overrides(*(f"training.{change}" for change in changes))
    train = ["train", "--config", str(config_file), *settings]
    assert main(train) == 0
    model = model_digest(run / "model")
    assert main(train) == 0
    assert "the run has made its 4 steps already" in caplog.text
    assert model_digest(run / "model") == model
    # It goes on from an older checkpoint if the newest is torn.
    caplog.clear()
    torn = run / "checkpoints" / "step-00000004" / "optimizer.safetensors"
    torn.unlink()
    assert main(train) == 0
    assert f"skipping a torn checkpoint: {torn} is missing" in caplog.text
    assert "has made its" not in caplog.text
    assert not torn.exists()
    assert model_digest(run / "model") == model, "the steps were made again"
    checkpoints = {path.name: path for path in (run / "checkpoints").glob("step-*")}
    made = ["step-00000000", "step-00000002", "step-00000004-attempt-3"]
    assert sorted(checkpoints) == made
    for path in checkpoints.values():
        os.truncate(path / "model.safetensors", 1000)
    assert main(train) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: training.resume: {run} holds no whole checkpoint. ")
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
    assert model_digest(run / "model") == model


@pytest.mark.parametrize("measured", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_static_encoder_is_trained_and_measured_too(config_file, tmp_path, measured):
    from sentence_transformers import SentenceTransformer

    settings = ("encoder.kind=static", "encoder.hidden=64", "training.learning_rate=0.02")
    static = overrides(*settings)
    assert main(["train", "--config", str(config_file), *static]) == 0
    run = tmp_path / "run"
    if measured:
        assert main(["evaluate", "--config", str(config_file), *static]) == 0
        figures = json.loads((run / "metrics.json").read_text())
        assert figures["after"]["retrieval"] != figures["before"]["retrieval"]
    assert "mean of its tokens' static embeddings of 64" in (run / "model/README.md").read_text()
    assert "random, static token embeddings of 64" in (run / "report.html").read_text()
    assert SentenceTransformer(str(run / "model")).encode(["a text"]).shape == (1, 64)


def write_nothing(path: Path) -> None:
    path.write_text("")


def write_no_parquet(path: Path) -> None:
    path.write_text("just text\n")


def write_few(path: Path) -> None:
    pq.write_table(pa.table({"sentence1": ["one text"], "sentence2": ["another text"]}), path)


# What the corpus and the lanes refuse by themselves has tests of its own.
@pytest.mark.parametrize(
    ("name", "write", "settings", "message"),
    [
        ("absent.parquet", None, ["corpus.format=parquet"], "corpus.inputs: "),
        pytest.param(
            *("empty.jsonl", write_nothing, ["corpus.format=jsonl"], "corpus.inputs: "),
            marks=pytest.mark.matrix,
        ),
        ("fake.parquet", write_no_parquet, ["corpus.format=parquet"], "corpus.inputs: "),
        pytest.param(
            "few.parquet",
            write_few,
            ["corpus.format=parquet", "corpus.pairs=columns", "corpus.min_characters=3"],
            "lanes.granule: 1 examples do not fill a row",
            marks=pytest.mark.matrix,
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
        (
            ["training.engine=torch", "training.workers=8", "training.granules_per_step=8"],
            "training.workers: 8 workers",
        ),
        (["training.granules_per_step=3"], "training.granules_per_step: 3 does not divide"),
        (["training.engine=none"], "training.engine: there is no engine `none`"),
        (["training.mode=hogwild"], "training.mode: engine local has no `hogwild`"),
        (["training.feed=spark"], "training.feed: engine local has no `spark`"),
        (["training.compression=fp16"], "training.compression: engine local does not know it"),
        (["training.offload=disk"], "training.offload: engine local does not know it"),
        (
            ["training.engine=torch", "training.offload=disk"],
            "training.offload: training.sharding `none` keeps",
        ),
        (["prepared.folder=nowhere"], "prepared.folder: there are no lanes"),
        (["encoder.start=nowhere"], "encoder.start: there is no folder nowhere"),
        (
            ["objective.name=cosine_regression", "corpus.score_column=s", "corpus.pairs=columns"],
            "objective.name: the lanes hold no scores",
        ),
        (
            ["objective.name=triplet", "corpus.pairs=triplets"],
            "objective.name: the lanes hold no hard negatives",
        ),
        (["objective.dimensions=[4096]"], "objective.dimensions: 4096 is more than the"),
    ],
)
def test_what_does_not_fit_the_lanes_is_refused(config_file, tmp_path, capsys, settings, message):
    assert main(["train", "--config", str(config_file), *overrides(*settings)]) == 2
    # Above it stands what was being done.
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()


def test_a_wrong_command_line_is_refused(capsys):
    assert main(["train", "--confg", "x"]) == 2
    assert main(["benchmark", "nothing"]) == 2
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["error:"] * 2


def test_without_a_command_there_is_help_and_no_error(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert "prepare" in shown.out + shown.err
    assert "error" not in shown.err


def test_the_version_and_the_benchmarks_are_told(capsys):
    from pipelines import __version__
    from pipelines_bench import BENCHMARKS

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sentence-pipelines {__version__}\n"
    assert main(["benchmark", "--help"]) == 0
    told = capsys.readouterr().out
    assert [name for name in BENCHMARKS if name not in told] == []


def test_a_benchmark_is_refused_where_none_are_installed_and_compare_has_a_new_name(
    capsys, monkeypatch
):
    assert main(["benchmark", "strategies", "--workers", "none"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "`benchmark strategies` is now called `compare`"
    assert told[-1].startswith("error: --workers: `none` is no list of numbers")
    monkeypatch.setattr("pipelines.cli.entry_points", lambda **_: ())
    assert main(["benchmark", "feed"]) == 2
    assert capsys.readouterr().err.startswith("error: benchmark: the benchmarks are not installed")


def spark_submit(*arguments: str | Path) -> subprocess.Popen:
    import pyspark

    return subprocess.Popen(
        [Path(pyspark.__file__).parent / "bin" / "spark-submit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | dict.fromkeys(PYTHON_VARIABLES, sys.executable),
    )


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,1024]"])
def test_spark_submit_runs_the_jobs_and_ends(prepared, tmp_path, master):
    """A barrier task leaves a thread in its JVM, for which spark-submit would wait."""
    config = small_config(prepared, engine="torch", framework="torch", workers=1, max_steps=4)
    (tmp_path / "small.yaml").write_text(dump(config.changed("run", folder=str(tmp_path / "run"))))
    done = spark_submit(
        *("--master", master, "--conf", "spark.ui.enabled=false"),
        *("--conf", f"spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"),
        ROOT / "jobs" / "train.py",
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
    endless = overrides("training.epochs=99999", "training.max_steps=99999")
    submitted = spark_submit(
        *("--master", "local[1]", "--conf", "spark.ui.enabled=false"),
        *(ROOT / "jobs" / "train.py", "--config", config_file, *endless),
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
    _, alive = psutil.wait_procs(drivers, timeout=120)
    for driver in alive:
        driver.kill()
    submitted.communicate(timeout=120)
    assert alive == []


PREPARING = {
    "prepare": pipelines.prepare,
    "run": pipelines.run,
    "delete": lambda config: delete(config, ["7"]),
}


@pytest.mark.parametrize("job", PREPARING)
@pytest.mark.parametrize("mine", ["corpus/a.jsonl", "units/a", "report.html", "notes.txt"])
def test_a_preparation_takes_no_folder_of_the_user(tmp_path, monkeypatch, job, mine):
    monkeypatch.setattr("pipelines.spark.session.spark_session", pytest.fail)
    file = tmp_path / "data" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    config = small_config(tmp_path / "data", engine="local").changed("prepared", keep_units=False)
    with pytest.raises(InputError, match=r"^prepared\.folder: .*/data holds other files \("):
        PREPARING[job](config)
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


READ = {
    "corpus.inputs": ["{}/texts.jsonl"],
    "corpus.exclude": ["{}/corpus/evaluation/queries.parquet"],
    "teacher.vectors": ["{}/vectors"],
    "evaluation.retrieval_sets": ["{}/sets/beir"],
    "evaluation.similarity": ["{}/sts.csv"],
    "evaluation.guards": ["{}/sts.csv"],
    "evaluation.classification": ["{}/pairs.csv"],
}


@pytest.mark.parametrize("key", READ)
@pytest.mark.parametrize("way", ["prepared", "link", "other/../prepared"])
def test_nothing_is_read_from_the_folder_that_is_prepared(tmp_path, key, way):
    (tmp_path / "prepared").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "prepared")
    (tmp_path / "other").mkdir()
    config = small_config(tmp_path / "prepared", engine="local")
    section, _, name = key.partition(".")
    given = tuple(one.format(tmp_path / way) for one in READ[key])
    with pytest.raises(InputError, match=r"^prepared\.folder: .*/prepared holds the input .*"):
        pipelines.prepare(config.changed(section, **{name: given}))
    assert list((tmp_path / "prepared").iterdir()) == []


@pytest.mark.parametrize(
    "given", ["{}/prepared/*.jsonl", "{}/pre*/**/*.jsonl", "{}", "{}/**/*.jsonl"]
)
def test_a_folder_around_the_prepared_one_gives_no_file_of_it(tmp_path, given):
    for name in ("units/1/rows/part-0.jsonl", "units/1/sources.json"):
        (tmp_path / "prepared" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "prepared" / name).write_text("{}")
    (tmp_path / "prepared" / "units" / "1" / "rows" / "part-a.jsonl").write_text("{}")
    config = small_config(tmp_path / "prepared", engine="local")
    with pytest.raises(InputError, match=r"^prepared\.folder: .*/prepared holds the input "):
        pipelines.prepare(config.changed("corpus", inputs=(given.format(tmp_path),)))


@pytest.mark.parametrize("kind", FORMATS)
def test_inputs_of_every_format_may_be_beside_the_prepared_folder(tmp_path, kind):
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "file.any").touch()
    config = small_config(tmp_path / "prepared", engine="local")
    config = config.changed("corpus", format=kind, inputs=(str(tmp_path / "inputs"),))
    check_prepared_folder(config)
    (tmp_path / "prepared" / "texts").mkdir(parents=True)
    config = config.changed("corpus", inputs=(str(tmp_path / "prepared" / "texts"),))
    if kind not in ("table", "iceberg"):
        with pytest.raises(InputError, match="holds"):
            check_prepared_folder(config)


def test_a_folder_with_other_files_is_refused_before_anything_is_prepared(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    config = small_config(tmp_path / "prepared", engine="local")
    config = config.changed("run", folder=str(tmp_path / "run"))
    with pytest.raises(InputError, match=r"^run\.folder: .* holds other files"):
        pipelines.run(config)
    assert not (tmp_path / "prepared").exists()
