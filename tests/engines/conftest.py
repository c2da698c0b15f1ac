"""Runs on the small corpus, for every engine's tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_factory import small_config
from engine_cases import (
    ENGINE_CASES,
    FIRST_OF_LAUNCHES,
    FIRST_OF_LOOPS,
    Course,
    EngineCase,
    course_here,
)

from pipelines.catalog import STEPPERS
from pipelines.engines.base import load_engine
from pipelines.evaluation.measure_checkpoint import measure, read_snapshots, write_snapshots
from pipelines.files.prepared_folder import PreparedFolder
from pipelines.jobs.training_plan import batch_plan
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.stage import prepare_lanes
from pipelines.models.folder import start_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.tokens.examples import SCHEMA
from pipelines.training.control.monitor import Monitor

QUALITY_STEPS = 120
POINTS = 5
"""Runs that differ by their seed alone are up to two points apart on so small a corpus."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Has one engine's tests follow one another: its Python workers on Spark are still there."""
    cases = {place: case for place, item in enumerate(items) if (case := case_of(item))}
    by_engine = sorted(cases, key=lambda place: ENGINE_CASES.index(cases[place]))
    ordered = [items[place] for place in by_engine]
    for place, item in zip(cases, ordered, strict=True):
        items[place] = item


def case_of(item: pytest.Item) -> EngineCase | None:
    """The engine case that a test is run with, if any."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value for value in values if isinstance(value, EngineCase)), None)


@pytest.fixture
def make_run(prepared, tmp_path) -> Callable[..., TrainingRun]:
    """Makes a run of some steps, with its first checkpoint written."""

    def make(
        steps: int,
        folder: str = "run",
        data: Path = prepared,
        negatives: str = "granule",
        directions: tuple[str, ...] = ("query_to_doc",),
        layers: int | None = None,
        **training,
    ) -> TrainingRun:
        config = small_config(data, **training)
        layers = layers or config.training.pipeline_parallel
        encoder = config.encoder.model_copy(update={"layers": layers})
        config = config.model_copy(update={"encoder": encoder})
        compared = {"negatives": negatives, "directions": directions}
        objective = config.objective.model_copy(update=compared)
        config = config.model_copy(update={"objective": objective})
        manifest = LaneManifest.load(data / "lanes")
        run_folder = tmp_path / folder
        spec, weights = start_encoder(config, manifest.vocabulary)
        save_checkpoint(run_folder, Checkpoint(0, spec, weights, {}), 9)
        return TrainingRun(
            config=config,
            plan=batch_plan(config, manifest),
            manifest=manifest,
            lanes_folder=data / "lanes",
            run_folder=run_folder,
            first_step=0,
            last_step=steps,
        )

    return make


@pytest.fixture(scope="session")
def known_courses() -> dict:
    """What :func:`course` has computed, by the arguments."""
    return {}


@pytest.fixture
def course(make_run, known_courses) -> Callable[..., Course]:
    """Finds the course of a run without an engine, which all tests compute once."""

    def find(steps: int, make: Callable[..., Course] = course_here, **settings) -> Course:
        key = (steps, make, *sorted(settings.items()))
        if key not in known_courses:
            known_courses[key] = make(make_run(steps, "reference", **settings))
        return known_courses[key]

    return find


@pytest.fixture
def reference(course) -> Callable[..., np.ndarray]:
    """Finds the losses of one process, which all tests compute once."""

    def find(steps: int, framework: str = "tensorflow", **settings) -> np.ndarray:
        return course(steps, workers=1, framework=framework, **settings).losses

    return find


@pytest.fixture(scope="session")
def triplets(spark, prepared, tmp_path_factory) -> Path:
    """The small corpus, each pair with the positives of the next two for hard negatives.

    Every third pair has the same positive, so that granules hold false negatives.
    """
    folder = tmp_path_factory.mktemp("triplets")
    shutil.copytree(prepared / "tokens", folder / "tokens")
    # What is made of these tokens is of no preparation.
    (folder / "tokens" / "stage.json").unlink()
    examples = folder / "tokens" / "examples.parquet"
    pairs = pq.read_table(examples).sort_by("id").to_pandas()
    shutil.rmtree(examples)
    examples.mkdir()
    shortest = pairs["positive"][pairs["positive"].map(len).idxmin()]
    pairs["positive"] = [shortest if n % 3 == 0 else ids for n, ids in enumerate(pairs["positive"])]
    others = [np.roll(pairs["positive"], -1), np.roll(pairs["positive"], -2)]
    pairs["negatives"] = list(zip(*others, strict=True))
    longest = [max(map(len, texts)) // 4 for texts in pairs["negatives"]]
    pairs["length"] = np.maximum(pairs["length"], longest).astype(np.int32)
    table = pa.Table.from_pandas(pairs, SCHEMA, preserve_index=False)
    pq.write_table(table, examples / "part-0.parquet")
    manifest = folder / "tokens" / "manifest.json"
    told = json.loads(manifest.read_text())
    changed = {"negatives": 2, "columns": [*told["columns"], "negatives"]}
    manifest.write_text(json.dumps(told | changed))
    prepare_lanes(spark, small_config(folder))
    return folder


@pytest.fixture(scope="session")
def held_out(spark, prepared, tmp_path_factory) -> Path:
    """The held-out pairs, for this process to measure on."""
    folder = tmp_path_factory.mktemp("held-out") / "snapshots"
    write_snapshots(read_snapshots(spark, small_config(prepared)), folder)
    return folder


@pytest.fixture
def check_quality(spark, make_run, course, prepared, held_out, tmp_path) -> Callable[..., None]:
    """Checks that two workers are as good as one process after the same number of examples."""

    def ndcg(checkpoint: Checkpoint, name: str) -> float:
        """On the held-out pairs, in points."""
        tokenizer = PreparedFolder(prepared).tokens.tokenizer
        write_encoder(tmp_path / name, checkpoint.spec, checkpoint.weights, tokenizer, "")
        figures = measure(held_out, lambda: load_embedder(tmp_path / name))
        return figures["retrieval among held-out"]["ndcg@10"]

    def check(engine: str, mode: str) -> None:
        alone = course(QUALITY_STEPS, workers=1, framework="tensorflow")
        before, after = ndcg(alone.first, "before"), ndcg(alone.last, "after")
        run = make_run(QUALITY_STEPS, workers=2, engine=engine, mode=mode)
        load_engine(engine).train(spark, run, lambda line: None)
        ours = ndcg(load_checkpoint(run.run_folder, QUALITY_STEPS), "ours")
        assert after - before > 2 * POINTS, "the reference learns more than what runs may differ by"
        assert ours > after - POINTS

    return check


@pytest.fixture
def monitors(monkeypatch):
    """The monitors of the runs, the newest last."""
    made = []

    class Kept(Monitor):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            made.append(self)

    monkeypatch.setattr("pipelines.engines.base.Monitor", Kept)
    return made


def in_matrix(unless: Callable[[EngineCase], bool]) -> list:
    """The engine cases as parameters, in the matrix alone unless a condition holds."""
    return [
        pytest.param(
            one, marks=one.marks + (() if unless(one) else (pytest.mark.matrix,)), id=str(one)
        )
        for one in ENGINE_CASES
    ]


@pytest.fixture(params=in_matrix(unless=lambda one: one.trains))
def engine_case(request, monkeypatch) -> EngineCase:
    """Every engine in turn."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


@pytest.fixture(
    params=[param for param in in_matrix(unless=lambda one: one.killed) if param.values[0].watched]
)
def killable(request, monkeypatch) -> EngineCase:
    """Every engine in turn whose workers are processes of ours; Spark's have tests of their own."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


@pytest.fixture(params=in_matrix(unless=lambda one: one in FIRST_OF_LAUNCHES))
def each_launch(request, monkeypatch) -> EngineCase:
    """Ways to start workers, but for those whose worker dies instead; in the matrix all."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


@pytest.fixture(params=in_matrix(unless=lambda one: one in FIRST_OF_LOOPS))
def each_loop(request, monkeypatch) -> EngineCase:
    """Every loop that makes steps once; in the matrix every engine in every mode."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


WITH_TENSORFLOW = {"elephas-async", "horovod-tensorflow"}


@pytest.fixture(
    params=[
        param
        for param in in_matrix(unless=lambda one: False)
        if str(param.values[0]) in WITH_TENSORFLOW
    ]
)
def in_executors(request) -> EngineCase:
    """The engines that compute with TensorFlow where an evaluation may have done so before."""
    return request.param


@pytest.fixture(
    params=[param for param in in_matrix(unless=lambda one: False) if not param.values[0].repeats]
)
def out_of_step(request) -> EngineCase:
    """The engines whose runs are not alike."""
    return request.param
