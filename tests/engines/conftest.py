"""Runs on the small corpus, for every engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpus_factory import small_config
from engine_cases import (
    ENGINE_CASES,
    FIRST_OF_LAUNCHES,
    FIRST_OF_LOOPS,
    EngineCase,
    trained_here,
)

from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.training.steppers import STEPPERS
from pipelines.training_plan import batch_plan


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
def known_curves() -> dict:
    """What :func:`reference` has computed, by the arguments."""
    return {}


@pytest.fixture
def reference(make_run, known_curves) -> Callable[..., np.ndarray]:
    """Finds the losses of one process, which all tests compute once."""

    def find(steps: int, framework: str = "tensorflow", **settings) -> np.ndarray:
        key = (steps, framework, *sorted(settings.items()))
        if key not in known_curves:
            run = make_run(steps, "reference", workers=1, framework=framework, **settings)
            known_curves[key], _ = trained_here(run)
        return known_curves[key]

    return find


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
    params=[param for param in in_matrix(unless=lambda one: one.faults) if param.values[0].watched]
)
def killable(request, monkeypatch) -> EngineCase:
    """Every engine in turn whose workers are processes of ours; Spark's have tests of their own."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


@pytest.fixture(params=in_matrix(unless=lambda one: one in FIRST_OF_LAUNCHES))
def each_launch(request, monkeypatch) -> EngineCase:
    """Every way to start workers once; in the matrix every engine in every mode."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


@pytest.fixture(params=in_matrix(unless=lambda one: one in FIRST_OF_LOOPS))
def each_loop(request, monkeypatch) -> EngineCase:
    """Every loop that makes steps once; in the matrix every engine in every mode."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param


WITH_TENSORFLOW = {"tensorflowonspark-lanes", "elephas-async", "horovod-tensorflow"}


@pytest.fixture(
    params=[
        param
        for param in in_matrix(unless=lambda one: one.name == "tensorflowonspark-lanes")
        if str(param.values[0]) in WITH_TENSORFLOW
    ]
)
def in_executors(request) -> EngineCase:
    """The engines that compute with TensorFlow where an evaluation may have done so before."""
    return request.param
