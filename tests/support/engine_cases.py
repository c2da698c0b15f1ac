"""The engines under contract, and what they are run with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice

import numpy as np
import pytest
from fork_engine import ForkEngine
from steppers import prepare_here

from pipelines.catalog import ENGINES, STEPPERS
from pipelines.engines.base import load_engine
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint
from pipelines.runs.run import TrainingRun, WorkerTask
from pipelines.settings.training import Placement
from pipelines.training.asynchronous import checkpoint_of, round_ends, state_of
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.base import lane_feed

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
        faults: Whether its failures are tried outside of the matrix too. If not, another case's
            take the same way, or the death of a worker does.
        trains: The same of its training: if not, the matrix alone holds its curve as a whole.
        equivalent: Whether its curve is that of one process.
        in_rounds: Whether its curve is that of workers whose states are averaged after each round.
        harder: What its training is tried with beside, for its curve.
        killed: Whether the death of a worker is tried outside of the matrix too.
        doors: How many addresses its runs listen at, where strangers come before a worker dies; 0
            if some are a library's own, which answers them.
        after_evaluation: Whether its workers are started after an evaluation in the same session
            outside of the matrix too.
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
    in_rounds: bool = False
    harder: dict = field(default_factory=dict)
    killed: bool = False
    doors: int = 0
    after_evaluation: bool = False
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
    in_rounds: bool = False,
    harder: dict | None = None,
    killed: bool = False,
    doors: int = 0,
    after_evaluation: bool = False,
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
        lambda: load_engine(engine, training.get("framework", "")),
        {"workers": 2} | training,
        # Gradients at parameters of steps before teach less, by how much depends on the machine;
        # so do those of a worker alone, of half a step.
        falls_to=0.95 if repeats and not in_rounds else 0.97,
        repeats=repeats,
        faults=faults,
        trains=trains,
        equivalent=equivalent and repeats,
        in_rounds=in_rounds,
        harder=harder or {},
        killed=killed,
        doors=doors,
        after_evaluation=after_evaluation,
        launch=launch or engine,
        loop=loop,
        watched=watched,
        marks=marks,
    )


def barrier_case(name: str, **known) -> EngineCase:
    """An engine that starts its workers in the tasks of a barrier job."""
    return engine_case(name, framework="torch", launch="barrier", **known)


# What makes steps of several workers differ from those of one: dropout, whose masks belong to
# granules, and negatives of the whole step, of which each worker holds a part, anchors too where
# they are compared.
OF_WHOLE_STEPS = {
    "dropout": 0.1,
    "negatives": "step",
    "directions": ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"),
}

# What an engine is tried with beside, or instead of, its defaults.
VARIANTS = {
    "local": [
        engine_case("local", faults=False),
        engine_case("local-torch", framework="torch", trains=False, killed=True),
    ],
    "tensorflowonspark": [
        engine_case("tensorflowonspark-lanes", faults=False, killed=True, after_evaluation=True),
        engine_case("tensorflowonspark-spark", feed="spark", trains=False, faults=False),
        engine_case(
            "tensorflowonspark-async",
            mode="async",
            repeats=False,
            trains=False,
            faults=False,
            loop="served",
        ),
        # Strangers come to the monitor, the registration and the parameter server.
        engine_case(
            "tensorflowonspark-async-spark",
            mode="async",
            feed="spark",
            repeats=False,
            faults=False,
            killed=True,
            doors=3,
            loop="served",
        ),
    ],
    "elephas": [
        engine_case(
            "elephas-sync",
            round_steps=4,
            transport="socket",
            equivalent=False,
            in_rounds=True,
            harder={"dropout": 0.1},
            faults=False,
            loop="rounds",
        ),
        engine_case(
            "elephas-async",
            mode="async",
            repeats=False,
            trains=False,
            faults=False,
            killed=True,
            doors=2,
            loop="served",
        ),
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
        engine_case(
            "bigdl-torch",
            harder={"feed": "memory", **OF_WHOLE_STEPS},
            framework="torch",
            faults=False,
            killed=True,
            launch="orca",
            loop="orca",
        ),
    ],
    "torch": [
        barrier_case("torch-ddp", harder=OF_WHOLE_STEPS, killed=True),
        barrier_case("torch-fsdp", sharding="parameters", trains=False, faults=False),
        barrier_case("torch-tensor", model_parallel=2, trains=False, faults=False),
        barrier_case("torch-pipeline", pipeline_parallel=2, trains=False, faults=False),
        barrier_case("torch-replicas", model_parallel=2, workers=4, trains=False, faults=False),
        barrier_case(
            "torch-tensor-fsdp",
            model_parallel=2,
            sharding="parameters",
            workers=4,
            trains=False,
            faults=False,
        ),
    ],
    "deepspeed": [
        barrier_case("deepspeed-zero1", sharding="optimizer", trains=False, faults=False),
        barrier_case("deepspeed-zero2", sharding="gradients", trains=False, faults=False),
        barrier_case("deepspeed-zero3", sharding="parameters", faults=False),
        barrier_case(
            "deepspeed-pipeline",
            sharding="optimizer",
            pipeline_parallel=2,
            trains=False,
            faults=False,
        ),
    ],
    "horovod": [
        engine_case("horovod-tensorflow", trains=False, faults=False, marks=(WITH_HOROVOD,)),
        # Its ranks do not listen any more when strangers come: the monitor and the store do.
        engine_case(
            "horovod-torch",
            harder={"feed": "memory", **OF_WHOLE_STEPS},
            framework="torch",
            faults=False,
            killed=True,
            doors=2,
            marks=(WITH_HOROVOD,),
        ),
    ],
    "megatron": [
        barrier_case("megatron-tensor", model_parallel=2, faults=False, marks=(WITH_MEGATRON,)),
        barrier_case(
            "megatron-pipeline",
            pipeline_parallel=2,
            trains=False,
            faults=False,
            marks=(WITH_MEGATRON,),
        ),
        barrier_case(
            "megatron-replicas",
            model_parallel=2,
            workers=4,
            trains=False,
            faults=False,
            marks=(WITH_MEGATRON,),
        ),
    ],
    "mesh": [
        engine_case("mesh", model_parallel=2, killed=True, marks=(WITH_MESH,)),
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
        killed=True,
        doors=1,
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
# The other two are held to it by `test_rounds.py` and `test_asynchronous.py`, without workers.
FIRST_OF_LOOPS = first_of_each(
    lambda one: one.loop, [one for one in ENGINE_CASES if one.loop not in {"rounds", "served"}]
)


def resumed(run: TrainingRun, step: int) -> TrainingRun:
    """The same run, to go on from the checkpoint before a step."""
    return dataclasses.replace(run, first_step=step)


def trained_here(run: TrainingRun, steps: int | None = None) -> tuple[np.ndarray, Checkpoint]:
    """The losses of a run's steps and the state after them, by one process and no engine.

    The framework computes in this process, and takes its threads where it has not begun.

    Args:
        steps: How many are made; all unless given.
    """
    stepper = stepper_here(run)
    losses = losses_here(stepper, run, steps)
    return losses, stepper.checkpoint(run.first_step + len(losses))


def stepper_here(run: TrainingRun):
    """The only worker's, in this process."""
    factory = STEPPERS.load(run.config.training.framework)
    prepare_here(factory, run.config.training)
    state = load_checkpoint(run.run_folder, run.first_step)
    return factory(task_here(run), state, SingleProcess())


def task_here(run: TrainingRun, rank: int = 0, workers: int = 1) -> WorkerTask:
    return WorkerTask(run=run, rank=rank, workers=workers, monitor=("", 0), token="")


def losses_here(stepper, run: TrainingRun, steps: int | None = None) -> np.ndarray:
    """The losses of steps that a stepper makes."""
    feed = islice(lane_feed(task_here(run)), steps)
    return np.array([stepper.step(work, run.learning_rate(work.index)) for work in feed])


LAST_STEPS = 10


@dataclass(frozen=True)
class Course:
    """What a run is without an engine.

    Attributes:
        losses: Of all steps.
        still: Of the last :data:`LAST_STEPS` with the weights as they were at first: steps are not
            equally hard.
        first: The state before the first step.
        middle: That in the middle.
        last: That after the last.
    """

    losses: np.ndarray
    still: np.ndarray
    first: Checkpoint
    middle: Checkpoint
    last: Checkpoint


def middle_of(steps: int) -> int:
    """The step before which the middle state of a course is."""
    return steps // 2


def course_here(run: TrainingRun) -> Course:
    """The course of a run in one process."""
    middle = middle_of(run.last_step)
    stepper, first = stepper_here(run), load_checkpoint(run.run_folder, 0)
    begun = losses_here(stepper, run, middle)
    kept = stepper.checkpoint(middle)
    rest = losses_here(stepper, resumed(run, middle))
    last = stepper.checkpoint(run.last_step)
    stepper.load(first)
    still = still_losses([stepper], run)
    return Course(np.append(begun, rest), still, first, kept, last)


def course_in_rounds(run: TrainingRun) -> Course:
    """The course of a run of workers whose states are averaged after each round."""
    workers = run.config.training.workers
    steppers = [stepper_here(run) for _ in range(workers)]
    feeds = [lane_feed(task_here(run, rank, workers)) for rank in range(workers)]
    first = load_checkpoint(run.run_folder, 0)
    losses, begin, states = [], 0, {0: first}
    for end in round_ends(run):
        for step in range(begin, end):
            rate = run.learning_rate(step)
            pairs = zip(steppers, feeds, strict=True)
            losses.append(np.mean([stepper.step(next(feed), rate) for stepper, feed in pairs]))
        made = [state_of(stepper.checkpoint(end)) for stepper in steppers]
        mean = {name: sum(state[name] for state in made) / workers for name in made[0]}
        states[end] = checkpoint_of(mean, end, first)
        for stepper in steppers:
            stepper.load(states[end])
        begin = end
    for stepper in steppers:
        stepper.load(first)
    still = still_losses(steppers, run)
    middle = states[middle_of(run.last_step)]
    return Course(np.array(losses), still, first, middle, states[run.last_step])


def still_losses(steppers, run: TrainingRun) -> np.ndarray:
    """The mean losses of the last steps at a rate at which nothing is learnt."""
    last = resumed(run, max(run.last_step - LAST_STEPS, 0))
    feeds = [lane_feed(task_here(last, rank, len(steppers))) for rank in range(len(steppers))]
    return np.array(
        [
            np.mean(
                [
                    stepper.step(next(feed), 1e-12)
                    for stepper, feed in zip(steppers, feeds, strict=True)
                ]
            )
            for _ in range(last.last_step - last.first_step)
        ]
    )
