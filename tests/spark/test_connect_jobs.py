"""The jobs in a session of Spark Connect give what they give in one with a SparkContext."""

from __future__ import annotations

import csv
import json
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from connected import needs_connect, said_in_a_session
from corpus_factory import small_config
from embedding_fixtures import lines, small_model

import pipelines
from pipelines.settings import Config
from pipelines.settings.load import dump, parse
from pipelines.spark.frames import shape_of
from pipelines.vectors.search import find_texts
from pipelines.vectors.store import open_table

__all__ = ["lines", "small_model"]

JOBS = """
import json, sys
from dataclasses import astuple
import pipelines
from pipelines.errors import PipelineError
from pipelines.vectors import search as text_search
from pipelines.settings.load import load

# No table fits into this process.
text_search.IN_PROCESS_BYTES = -1
QUERIES = ["print the help", "a list of arguments"]

def search(config):
    exact = pipelines.search(config, QUERIES, 3)
    indexed = pipelines.search(config, QUERIES, 3, indexed=True)
    hybrid = pipelines.search(config, QUERIES, 3, hybrid=True)
    return [list(map(astuple, hits)) for hits in (exact, indexed, hybrid)]

done = {}
for given in sys.argv[1:]:
    job, _, path = given.partition("=")
    work = search if job == "search" else getattr(pipelines, job)
    try:
        done[given] = work(load(path, []))
    except PipelineError as error:
        done[given] = str(error)
print(json.dumps(done, default=str))
"""
STANDS_STILL = """
import json, time
from functools import partial
from pipelines.errors import PipelineError
from pipelines.settings import Config
from pipelines.spark.capacity import TASKS
from pipelines.spark.capacity import default_parallelism
from pipelines.spark.jobs import run_with_timeout
from pipelines.spark.session import running_tasks, spark_session
from pipelines.spark.tasks import collect_from_tasks

session = spark_session(Config(), needs_context=False)

def hangs(tasks):
    for seconds in tasks:
        time.sleep(seconds)
        yield seconds

seen = []
def state():
    seen.append(running_tasks())

said = {"parallelism": default_parallelism(session)}
said["results"] = run_with_timeout(
    session, "short", partial(collect_from_tasks, session, [0, 3, 0], hangs)
)
try:
    act = partial(collect_from_tasks, session, [600, 600], hangs)
    run_with_timeout(session, "embedding, again", act, state, stall_seconds=8)
except PipelineError as error:
    said["stood still"] = str(error)
deadline = time.monotonic() + 60
while TASKS.counts()[1] and time.monotonic() < deadline:
    time.sleep(0.1)
print(json.dumps({**said, "seen": seen, "left": TASKS.counts()}))
"""


def rows_of(path: Path) -> list[dict]:
    """The rows of a table, in its order."""
    files = sorted(path.rglob("part-*.parquet")) if path.is_dir() else [path]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def write_texts(folder: Path, lines: list[str]) -> dict[str, Path]:
    """The same texts as CSV and as JSON lines, of which not all have all keys."""
    tables = {kind: folder / f"texts.{kind}" for kind in ("csv", "jsonl")}
    with tables["csv"].open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(lines)])
    with tables["jsonl"].open("w") as file:
        for number, line in enumerate(lines):
            more = {"more": {"a": [1, 2.5, None], "b": None, "c": "x"}} if number % 3 else {}
            tags = {"tags": [str(number)]} if number % 5 else {"tags": None}
            file.write(json.dumps({"id": number, "text": line, **tags, **more}) + "\n")
    return tables


def written(home: Path, name: str, config: Config) -> str:
    """The path of a file of settings."""
    path = home / f"{name}.yaml"
    path.write_text(dump(config))
    return str(path)


@pytest.fixture
def training(prepared, tmp_path) -> Config:
    """A short training by the engine that needs no executors."""
    config = small_config(prepared, engine="local", framework="torch", workers=1, max_steps=4)
    return in_folder(config, "run", tmp_path / "run")


def in_folder(config: Config, section: str, folder: Path) -> Config:
    """The settings with another folder in a section."""
    changed = getattr(config, section).model_copy(update={"folder": str(folder)})
    return config.model_copy(update={section: changed})


@needs_connect
def test_prepare_train_and_evaluate(spark, prepared, training, tmp_path):
    pipelines.train(training)
    figures = pipelines.evaluate(training)
    anew = in_folder(in_folder(training, "run", tmp_path / "anew"), "prepared", tmp_path / "lanes")
    engine = training.training.model_copy(update={"engine": "torch"})
    refused = in_folder(training, "run", tmp_path / "no").model_copy(update={"training": engine})
    jobs = [
        f"run={written(tmp_path, 'anew', anew)}",
        f"train={written(tmp_path, 'refused', refused)}",
    ]
    said = said_in_a_session(JOBS, *jobs)

    for name in ("corpus/pairs.parquet", "corpus/evaluation/queries.parquet"):
        ours, theirs = rows_of(tmp_path / "lanes" / name), rows_of(prepared / name)
        assert sorted(ours, key=str) == sorted(theirs, key=str)
    manifests = [folder / "lanes" / "manifest.json" for folder in (tmp_path / "lanes", prepared)]
    assert manifests[0].read_text() == manifests[1].read_text()
    found = said[jobs[0]]
    for when in ("before", "after"):
        assert found[when].keys() == figures[when].keys()
        for name, of_set in figures[when].items():
            assert found[when][name] == pytest.approx(of_set, abs=1e-3)
    assert said[jobs[1]].startswith("spark.master: this is a Spark Connect session")


def mining_of(folder: Path, model: Path, name: str) -> Config:
    """Negatives of the texts by their numbers."""
    mining = {
        "model": str(model),
        "inputs": [str(folder / "texts.csv")],
        "format": "csv",
        "anchor_column": "id",
        "positive_column": "text",
        "relative_margin": None,
        "output": str(folder / name),
    }
    return parse({"mining": mining, "embedding": {"precision": "fp32"}})


@needs_connect
def test_embed_mine_and_search(spark, tmp_path, small_model, lines):
    jobs: list[str] = []
    for kind, path in write_texts(tmp_path, lines[:100]).items():
        embedding = {"model": str(small_model), "inputs": [str(path)], "format": kind}
        embedding |= {"part_rows": 40, "key_column": "id"}
        pipelines.embed(parse({"embedding": embedding | {"output": str(tmp_path / kind)}}))
        again = parse({"embedding": embedding | {"output": str(tmp_path / f"connected-{kind}")}})
        jobs.append(f"embed={written(tmp_path, kind, again)}")
    mined = [mining_of(tmp_path, small_model, name) for name in ("mined", "connected-mined")]
    pipelines.mine(mined[0])
    jobs.append(f"mine={written(tmp_path, 'mine', mined[1])}")
    searching = f"search={tmp_path / 'csv.yaml'}"
    exact, indexed, hybrid = said_in_a_session(JOBS, *jobs, searching)[searching]

    for kind in ("csv", "jsonl"):
        ours, theirs = rows_of(tmp_path / f"connected-{kind}"), rows_of(tmp_path / kind)
        vectors = [np.array([row.pop("embedding") for row in rows]) for rows in (ours, theirs)]
        assert ours == theirs
        np.testing.assert_allclose(*vectors, atol=1e-5)
    ours, theirs = rows_of(tmp_path / "connected-mined"), rows_of(tmp_path / "mined")
    assert ours == theirs
    assert len(ours) > 50
    queries = ["print the help", "a list of arguments"]
    near, both = (
        [list(astuple(hit)) for hit in find_texts(open_table(tmp_path / "csv"), queries, 3, **more)]
        for more in ({}, {"hybrid": True})
    )
    # All but the cosine.
    for found, wanted in ((exact, near), (indexed, near), (hybrid, both)):
        assert [hit[:2] + hit[3:] for hit in found] == [hit[:2] + hit[3:] for hit in wanted]


@needs_connect
def test_tasks_are_counted_and_a_job_that_stands_still_is_called_off():
    said = said_in_a_session(STANDS_STILL)
    assert said["parallelism"] == 2
    assert said["results"] == [0, 3, 0]
    assert said["stood still"].startswith("embedding, again was cancelled: its tasks wrote nothing")
    assert "0 of 2 tasks" in said["seen"]
    assert said["left"] == [0, 0]


def test_values_of_the_same_types_have_one_shape():
    rows = [
        '{"a": 1, "b": [1, 2, null], "c": {"d": "x"}}',
        '{"a": -7, "b": [3, null], "c": {"d": ""}}',
    ]
    shapes = {json.dumps(shape_of(json.loads(row))) for row in rows}
    assert shapes == {'{"a": 0, "b": [0, null], "c": {"d": ""}}'}
    assert shape_of([True, 2**70, 1.5e300, None]) == [True, 2**70, 0.5, None]
