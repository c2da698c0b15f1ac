"""Checkpoints are measured while training goes on, with the figures of the cluster."""

import json
import logging
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config
from test_beir import DOCUMENTS, QRELS, QUERIES, write_set

import pipelines
from pipelines.errors import InputError
from pipelines.evaluation.base import Forms
from pipelines.evaluation.during_training import CheckpointEvaluation
from pipelines.evaluation.held_out import read_held_out_alone
from pipelines.evaluation.retrieval import arranged, measure
from pipelines.evaluation.rows import SparkRows
from pipelines.evaluation.sets import evaluate
from pipelines.models.folder import write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import load_checkpoint
from pipelines.runs.job_records import add_evaluations, forget_evaluations, read_evaluations
from pipelines.settings import Config

LEFT = ["a cat sleeps", "the market fell", "it rains", "he sings", "open the file"]
RIGHT = ["the cat is asleep", "stocks lost", "sunny weather", "he is silent", "close a socket"]
PAIRS_ALONE = {"retrieval": False, "geometry": False, "classification": (), "retrieval_sets": ()}
# Has step 3 of a run measured while a training of ten minutes goes on.
DRIVER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from pipelines.settings.load import parse
from pipelines.evaluation.during_training import CheckpointEvaluation
from pipelines.evaluation.measure_checkpoint import Snapshot
from planned_runs import make_run

folder = Path(sys.argv[1])
config = parse({"training": {"checkpoint_every": 3}, "evaluation": {"every_checkpoints": 1}})
run = replace(make_run(9, folder=folder), config=config)
with CheckpointEvaluation([Snapshot("dev", "similarity", {})], run, folder / "tokenizer"):
    time.sleep(600)
"""


@pytest.fixture
def measured_config(prepared, tmp_path) -> Config:
    """Every evaluation that there is, at every checkpoint of a run of twelve steps."""
    pairs = {"sentence1": LEFT, "sentence2": RIGHT}
    pq.write_table(pa.table(pairs | {"score": [5.0, 4.0, 1.0, 0.5, 0.0]}), tmp_path / "sts.parquet")
    pq.write_table(pa.table(pairs | {"label": [1, 1, 0, 0, 0]}), tmp_path / "same.parquet")
    write_set(tmp_path / "beir", DOCUMENTS, QUERIES, QRELS)
    config = small_config(
        prepared,
        engine="local",
        framework="torch",
        workers=1,
        max_steps=12,
        checkpoint_every=3,
        keep_checkpoints=9,
    )
    evaluation = {
        "similarity": (str(tmp_path / "sts.parquet"),),
        "classification": (str(tmp_path / "same.parquet"),),
        "retrieval_sets": (str(tmp_path / "beir"),),
        "every_checkpoints": 2,
    }
    return config.model_copy(
        update={
            "evaluation": config.evaluation.model_copy(update=evaluation),
            "objective": config.objective.model_copy(update={"dimensions": (4,)}),
            "tracking": config.tracking.model_copy(update={"trackers": ("tensorboard",)}),
            "run": config.run.model_copy(update={"folder": str(tmp_path / "run")}),
        }
    )


def replaced(config: Config, section: str, **values) -> Config:
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


def losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def late_processes(monkeypatch) -> None:
    """A checkpoint is seen at once; the process that measures it begins after the training."""
    ask = CheckpointEvaluation._ask

    def ask_late(self, job: bytes) -> bytes:
        assert self._ending.wait(120)
        time.sleep(0.2)
        return ask(self, job)

    monkeypatch.setattr(CheckpointEvaluation, "_ask", ask_late)
    monkeypatch.setattr("pipelines.evaluation.during_training.POLL_SECONDS", 0.01)


def test_the_figures_are_the_clusters_and_the_curve_stays_even_if_it_fails(
    spark, measured_config, prepared, tmp_path, late_processes, monkeypatch, caplog
) -> None:
    pipelines.train(measured_config)
    run = tmp_path / "run"
    lines = read_evaluations(run)
    among = ["retrieval", "retrieval@4"]
    rest = ["geometry", "sts", "same", "beir", "beir+bm25", "beir@4", "beir@4+bm25"]
    names = [*(f"{name} among held-out" for name in among), *rest]
    assert [(line["step"], line["evaluation"]) for line in lines] == [(6, name) for name in names]

    checkpoint = load_checkpoint(run, 6)
    tokenizer = prepared / "tokens" / "tokenizer"
    write_encoder(tmp_path / "model", checkpoint.spec, checkpoint.weights, tokenizer, "")
    expected = evaluate(spark, measured_config, tmp_path / "model")
    assert list(expected) == among + rest
    pool = expected["retrieval"]["documents"]
    # What one process searches in minutes is not what is trained on, too.
    held_out = read_held_out_alone(spark, measured_config, str(prepared / "corpus"))
    load = partial(load_embedder, str(tmp_path / "model"), precision="fp32")
    rows = {name: SparkRows(frame) for name, frame in arranged(held_out).items()}
    alone = [found.figures for found in measure(rows, load, Forms((4,)))]
    expected |= dict(zip(names, alone, strict=False))
    assert all(figures["documents"] < pool for figures in alone)
    for line in lines:
        figures = {key: line[key] for key in line if key not in ("step", "evaluation")}
        assert figures == pytest.approx(expected[line["evaluation"]], abs=1e-3)

    # Start and model stand beside the checkpoint, on what is asked for then: one file of pairs.
    figures = pipelines.evaluate(replaced(measured_config, "evaluation", **PAIRS_ALONE))
    assert [line["step"] for line in read_evaluations(run)] == [0] + [6] * len(names) + [12]
    assert read_evaluations(run)[-1] == {"step": 12, "evaluation": "sts", **figures["after"]["sts"]}
    assert set(figures["before"]) == set(figures["after"]) == {"sts"}

    # One that fails, early in the training, costs one line.
    monkeypatch.undo()
    monkeypatch.setattr("pipelines.evaluation.during_training.MEASURE_SECONDS", 0.01)
    every = replaced(measured_config, "evaluation", **PAIRS_ALONE, every_checkpoints=1)
    every = replaced(every, "run", folder=str(tmp_path / "failing"))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        pipelines.train(every.model_copy(update={"tracking": Config().tracking}))
    warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert len([line for line in warnings if "was not measured (" in line]) == 1
    assert read_evaluations(tmp_path / "failing") == []
    assert len(losses(run)) == 12
    assert losses(run) == losses(tmp_path / "failing")


def test_what_cannot_be_read_is_refused_before_the_run_begins(
    spark, measured_config, tmp_path
) -> None:
    wrong = replaced(measured_config, "evaluation", similarity=("nowhere.csv",))
    with pytest.raises(InputError, match=r"^evaluation.similarity: there is no file"):
        pipelines.train(wrong)
    assert not (tmp_path / "run").exists()


def test_lines_are_replaced_and_forgotten_by_step(tmp_path) -> None:
    add_evaluations(tmp_path, 20, {"dev": {"spearman": 2.0}})
    add_evaluations(tmp_path, 10, {"dev": {"spearman": 1.0}, "test": {"spearman": 5.0}})
    add_evaluations(tmp_path, 10, {"dev": {"spearman": 3.0}})
    assert read_evaluations(tmp_path) == [
        {"step": 10, "evaluation": "test", "spearman": 5.0},
        {"step": 10, "evaluation": "dev", "spearman": 3.0},
        {"step": 20, "evaluation": "dev", "spearman": 2.0},
    ]
    forget_evaluations(tmp_path, 10)
    assert [line["step"] for line in read_evaluations(tmp_path)] == [10, 10]


@pytest.fixture
def silent_checkpoint(tmp_path) -> Path:
    """A run folder whose checkpoint of step 3 is on a disk that does not answer: a pipe."""
    state = tmp_path / "run" / "checkpoints" / "step-00000003" / "state.json"
    state.parent.mkdir(parents=True)
    os.mkfifo(state)
    return state


def await_reader(pipe: Path, driver: subprocess.Popen) -> int:
    """The pipe's other end, as soon as a process waits for what it has to say."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # Nobody reads yet.
            assert time.monotonic() < deadline
            assert driver.poll() is None
            time.sleep(0.1)


def test_the_measuring_ends_with_a_driver_that_is_killed(silent_checkpoint, tmp_path) -> None:
    (tmp_path / "temporary").mkdir()
    paths = [*sys.path, str(Path(__file__).parents[1] / "support")]
    places = {"TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": os.pathsep.join(paths)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, tmp_path / "run"], env=os.environ | places
    )
    try:
        end = await_reader(silent_checkpoint, driver)
        measuring = psutil.Process(driver.pid).children()
        assert [
            "pipelines.evaluation.measure_checkpoint" in one.cmdline() for one in measuring
        ] == [True]
        assert len(list((tmp_path / "temporary").iterdir())) == 1
        driver.kill()
        driver.wait(120)
        _, alive = psutil.wait_procs(measuring, timeout=120)
        os.close(end)
        for one in alive:
            one.kill()
        assert alive == []
        assert list((tmp_path / "temporary").iterdir()) == []
    finally:
        driver.kill()


def test_the_measuring_has_a_deadline_of_its_own(silent_checkpoint, tmp_path) -> None:
    (tmp_path / "way").mkdir()
    job = {
        "run_folder": str(tmp_path / "run"),
        "step": 3,
        "tokenizer": "",
        "snapshots": "",
        "storage": {},
        "folder": str(tmp_path / "way"),
        "driver": os.getpid(),
        "seconds": 0.5,
    }
    measuring = subprocess.Popen(
        [sys.executable, "-m", "pipelines.evaluation.measure_checkpoint"], stdin=subprocess.PIPE
    )
    try:
        measuring.communicate(json.dumps(job).encode(), timeout=60)
    finally:
        measuring.kill()
    assert measuring.returncode == 1
    assert not (tmp_path / "way").exists()
