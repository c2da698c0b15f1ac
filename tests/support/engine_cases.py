"""The engines under contract, and what they are run with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest
from fork_engine import ForkEngine
from steppers import prepare_here

from pipelines.engines import ENGINES
from pipelines.engines.loading import load_engine
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.placement import Placement
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.feed import lane_feed
from pipelines.training.steppers import STEPPERS

WITH_MEGATRON = pytest.mark.skipif(
    find_spec("megatron") is None, reason="Megatron-Core is not installed: make megatron"
)
WITH_HOROVOD = pytest.mark.skipif(
    find_spec("horovod") is None, reason="Horovod is not installed: make horovod"
)
WITH_MESH = pytest.mark.skipif(
    find_spec("mesh_tensorflow") is None, reason="Mesh TensorFlow is not installed: make mesh"
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
        loop: What makes its steps, and finds that one has no finite loss.
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
    loop: str = "steps"
    watched: bool = True
    marks: tuple = ()

    @property
    def placement(self) -> Placement:
        """How its workers are laid out."""
        stages = self.training.get("pipeline_parallel", 1)
        members = self.training.get("model_parallel", 1)
        return Placement(
            replicas=self.training["workers"] // (stages * members), stages=stages, members=members
        )

    @property
    def tells_exchange(self) -> bool:
        """Whether it tells time in its exchange apart: not where a library mixes it with layers."""
        is_whole = self.training.get("sharding", "none") == "none" and self.placement.stages == 1
        return is_whole and not self.name.startswith(("megatron", "mesh"))

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
    loop: str = "steps",
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
        loop=loop,
        watched=watched,
        marks=marks,
    )


def distributor_case(name: str, **known) -> EngineCase:
    """An engine that starts its workers by Spark's distributor of torchrun."""
    return engine_case(name, framework="torch", launch="distributor", **known)


# What an engine is tried with beside, or instead of, its defaults.
VARIANTS = {
    "local": [
        engine_case("local", faults=False),
        engine_case("local-torch", framework="torch"),
    ],
    "tensorflowonspark": [
        engine_case("tensorflowonspark-lanes"),
        engine_case("tensorflowonspark-spark", feed="spark", trains=False, faults=False),
        engine_case(
            "tensorflowonspark-async", mode="async", repeats=False, faults=False, loop="served"
        ),
        engine_case(
            "tensorflowonspark-async-spark",
            mode="async",
            feed="spark",
            repeats=False,
            trains=False,
            faults=False,
            loop="served",
        ),
    ],
    "elephas": [
        engine_case(
            "elephas-sync",
            round_steps=4,
            transport="socket",
            equivalent=False,
            faults=False,
            loop="rounds",
        ),
        engine_case("elephas-async", mode="async", repeats=False, loop="served"),
        engine_case(
            "elephas-hogwild",
            mode="hogwild",
            transport="socket",
            max_staleness=3,
            repeats=False,
            trains=False,
            faults=False,
            loop="served",
        ),
    ],
    "bigdl": [
        engine_case("bigdl", framework="bigdl", loop="dllib", watched=False),
        engine_case("bigdl-torch", framework="torch", launch="orca", loop="orca"),
    ],
    "torch": [
        distributor_case("torch-ddp"),
        distributor_case("torch-fsdp", sharding="parameters", trains=False, faults=False),
        distributor_case("torch-tensor", model_parallel=2, trains=False, faults=False),
        distributor_case("torch-pipeline", pipeline_parallel=2),
        distributor_case("torch-replicas", model_parallel=2, workers=4, trains=False, faults=False),
        distributor_case(
            "torch-tensor-fsdp",
            model_parallel=2,
            sharding="parameters",
            workers=4,
            trains=False,
            faults=False,
        ),
    ],
    "deepspeed": [
        distributor_case("deepspeed-zero1", sharding="optimizer", trains=False, faults=False),
        distributor_case("deepspeed-zero2", sharding="gradients", trains=False, faults=False),
        distributor_case("deepspeed-zero3", sharding="parameters", faults=False),
        distributor_case(
            "deepspeed-pipeline",
            sharding="optimizer",
            pipeline_parallel=2,
            trains=False,
            faults=False,
        ),
    ],
    "horovod": [
        engine_case("horovod-tensorflow", marks=(WITH_HOROVOD,)),
        engine_case(
            "horovod-torch", framework="torch", trains=False, faults=False, marks=(WITH_HOROVOD,)
        ),
    ],
    "megatron": [
        distributor_case("megatron-tensor", model_parallel=2, faults=False, marks=(WITH_MEGATRON,)),
        distributor_case(
            "megatron-pipeline",
            pipeline_parallel=2,
            trains=False,
            faults=False,
            marks=(WITH_MEGATRON,),
        ),
        distributor_case(
            "megatron-replicas",
            model_parallel=2,
            workers=4,
            trains=False,
            faults=False,
            marks=(WITH_MEGATRON,),
        ),
    ],
    "mesh": [
        engine_case("mesh", model_parallel=2, marks=(WITH_MESH,)),
        engine_case(
            "mesh-replicas",
            model_parallel=2,
            workers=4,
            trains=False,
            faults=False,
            marks=(WITH_MESH,),
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


def first_of_each(kind: Callable[[EngineCase], str], cases: list[EngineCase]) -> list[EngineCase]:
    """The first case of each kind."""
    return [*{kind(one): one for one in reversed(cases)}.values()]


FIRST_OF_LAUNCHES = first_of_each(
    lambda one: one.launch, [one for one in ENGINE_CASES if one.faults]
)
FIRST_OF_LOOPS = first_of_each(lambda one: one.loop, ENGINE_CASES)


def resumed(run: TrainingRun, step: int) -> TrainingRun:
    """The same run, to go on from the checkpoint before a step."""
    return dataclasses.replace(run, first_step=step)


def trained_here(run: TrainingRun, steps: int | None = None) -> tuple[np.ndarray, Checkpoint]:
    """The losses of a run's steps and the state after them, by one process and no engine.

    The framework computes in this process, and takes its threads where it has not begun.

    Args:
        steps: How many are made; all unless given.
    """
    task = WorkerTask(run=run, rank=0, workers=1, monitor=("", 0), token="")
    factory = STEPPERS.load(run.config.training.framework)
    prepare_here(factory, run.config.training)
    stepper = factory(task, load_checkpoint(run.run_folder, run.first_step), SingleProcess())
    losses = [
        stepper.step(work, run.learning_rate(work.index)) for work in islice(lane_feed(task), steps)
    ]
    return np.array(losses), stepper.checkpoint(run.first_step + len(losses))
