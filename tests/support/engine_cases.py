"""The engines under contract, and what they are run with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
from fork_engine import ForkEngine

from pipelines.engines import ENGINES
from pipelines.engines.loading import load_engine
from pipelines.runs.run import TrainingRun

WITH_HOROVOD = pytest.mark.skipif(
    find_spec("horovod") is None, reason="Horovod is not installed: make horovod"
)


@dataclass(frozen=True)
class EngineCase:
    """An engine with the settings that the contract suite runs it with.

    Attributes:
        name: Engine and feed.
        make: Makes the engine.
        training: Settings of its runs.
        falls_to: Share of the loss without learning that the last steps' must be below.
        repeats: Whether a run gives the same losses each time.
        faults: Whether its failures are tried outside of the matrix too: another case's
            take the same way if not.
        trains: The same of its training: other tests hold its curve to the reference's if not.
        equivalent: Whether its curve is that of one process.
        launch: How its workers are started.
        watched: Whether its workers are processes of ours that report to a monitor.
        marks: Of its tests.
    """

    name: str
    make: Callable
    training: dict
    falls_to: float = 0.95
    repeats: bool = True
    faults: bool = True
    trains: bool = True
    equivalent: bool = True
    launch: str = ""
    watched: bool = True
    marks: tuple = ()

    def __str__(self) -> str:
        return self.name


def engine_case(
    name: str,
    *,
    repeats: bool = True,
    faults: bool = True,
    trains: bool = True,
    equivalent: bool = True,
    launch: str = "",
    watched: bool = True,
    marks: tuple = (),
    **training,
) -> EngineCase:
    """An engine of the registry: what stands before the first dash of the name."""
    engine = name.split("-", maxsplit=1)[0]
    return EngineCase(
        name,
        lambda: load_engine(engine),
        {"workers": 2} | training,
        # Gradients at parameters of steps before teach less, by how much depends on the machine.
        falls_to=0.95 if repeats else 0.97,
        repeats=repeats,
        faults=faults,
        trains=trains,
        equivalent=equivalent and repeats,
        launch=launch or engine,
        watched=watched,
        marks=marks,
    )


def distributor_case(name: str, **known) -> EngineCase:
    """An engine that starts its workers by Spark's distributor of torchrun."""
    return engine_case(name, framework="torch", launch="distributor", **known)


# What an engine is tried with beside, or instead of, its defaults.
VARIANTS = {
    # The reference itself.
    "local": [
        engine_case("local", equivalent=False),
        engine_case("local-torch", framework="torch", equivalent=False, faults=False),
    ],
    "tensorflowonspark": [
        engine_case("tensorflowonspark-lanes"),
        engine_case("tensorflowonspark-spark", feed="spark", trains=False, faults=False),
        engine_case("tensorflowonspark-async", mode="async", repeats=False, faults=False),
        engine_case(
            "tensorflowonspark-async-spark",
            mode="async",
            feed="spark",
            repeats=False,
            trains=False,
            faults=False,
        ),
    ],
    "elephas": [
        engine_case(
            "elephas-sync", round_steps=4, transport="socket", equivalent=False, faults=False
        ),
        engine_case("elephas-async", mode="async", repeats=False),
        engine_case(
            "elephas-hogwild",
            mode="hogwild",
            transport="socket",
            max_staleness=3,
            repeats=False,
            faults=False,
        ),
    ],
    "bigdl": [
        engine_case("bigdl", framework="bigdl", watched=False),
        engine_case("bigdl-torch", framework="torch", launch="orca"),
    ],
    "torch": [
        distributor_case("torch-ddp"),
        distributor_case("torch-fsdp", sharding="parameters", trains=False, faults=False),
    ],
    "deepspeed": [
        distributor_case("deepspeed-zero1", sharding="optimizer", trains=False, faults=False),
        distributor_case("deepspeed-zero2", sharding="gradients", trains=False, faults=False),
        distributor_case("deepspeed-zero3", sharding="parameters", faults=False),
    ],
    "horovod": [
        engine_case("horovod-tensorflow", marks=(WITH_HOROVOD,)),
        engine_case(
            "horovod-torch", framework="torch", trains=False, faults=False, marks=(WITH_HOROVOD,)
        ),
    ],
}


def engine_cases() -> list[EngineCase]:
    """The engines of the registry, with their defaults where nothing is said of them here."""
    return [one for name in ENGINES for one in VARIANTS.get(name, [engine_case(name)])]


ENGINE_CASES = [
    EngineCase(
        "test",
        ForkEngine,
        {"workers": 1, "framework": "numpy", "learning_rate": 1e-2},
        falls_to=0.97,
        equivalent=False,
        launch="test",
    ),
    *engine_cases(),
]

FIRST_OF_LAUNCHES = [*{one.launch: one for one in reversed(ENGINE_CASES)}.values()]


def resumed(run: TrainingRun, step: int) -> TrainingRun:
    """The same run, to go on from the checkpoint before a step."""
    return dataclasses.replace(run, first_step=step)
