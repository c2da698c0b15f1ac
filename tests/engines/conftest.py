"""Runs on the small corpus, for every engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_factory import small_config
from engine_cases import ENGINE_CASES, FIRST_OF_ENGINES, EngineCase

from pipelines.lanes.files import LaneManifest
from pipelines.models.folder import start_encoder
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.training.steppers import STEPPERS
from pipelines.training_job import batch_plan


@pytest.fixture
def make_run(prepared, tmp_path) -> Callable[..., TrainingRun]:
    """Makes a run of some steps, with its first checkpoint written."""

    def make(steps: int, folder: str = "run", data: Path = prepared, **training) -> TrainingRun:
        config = small_config(data, **training)
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


@pytest.fixture(params=in_matrix(unless=lambda one: one in FIRST_OF_ENGINES))
def each_engine(request, monkeypatch) -> EngineCase:
    """Every engine once; in the matrix in every mode."""
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")
    return request.param
