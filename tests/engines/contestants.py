"""The engines under contract, and what they are run with."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from pipelines.engines import engine
from pipelines.engines.base import monitor_for
from pipelines.training.run import TrainingRun, WorkerTask
from pipelines.training.worker import run_worker

WITH_HOROVOD = pytest.mark.skipif(
    find_spec("horovod") is None, reason="Horovod is not installed: make horovod"
)


class ForkEngine:
    """The smallest engine: one forked process, and numpy for a framework."""

    name, modes, frameworks, needs_spark = "test", {"sync": None}, ("numpy",), False
    feeds = ("lanes", "memory")
    shardings = ("none",)
    options = ()

    def executors(self, config):
        """None."""
        return 0

    def conf_rules(self, config):
        """None."""
        return ()

    def check(self, session, config):
        """Nothing can be missing."""

    def train(self, session, run, on_metrics):
        monitor = monitor_for(self.name, run, on_metrics, "127.0.0.1")
        task = WorkerTask(run=run, rank=0, workers=1, monitor=monitor.address, token=monitor.token)
        process = multiprocessing.get_context("fork").Process(target=run_worker, args=(task,))
        process.start()
        try:
            with monitor:
                return monitor.wait()
        finally:
            process.join(10)


@dataclass(frozen=True)
class Contestant:
    """An engine with the settings that the contract suite runs it with.

    Attributes:
        name: Engine and feed.
        make: Makes the engine.
        training: Settings of its runs.
        falls_to: Share of the loss without learning that the last steps' must be below.
        repeats: Whether a run gives the same losses each time.
        faults: Whether its failures are tried outside of the matrix too: another contestant's
            take the same way if not.
        trains: The same of its training: other tests hold its curve to the reference's if not.
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
    watched: bool = True
    marks: tuple = ()

    def __str__(self) -> str:
        return self.name


def contestant(
    name: str,
    *,
    repeats: bool = True,
    faults: bool = True,
    trains: bool = True,
    watched: bool = True,
    marks: tuple = (),
    **training,
) -> Contestant:
    """An engine of the registry: what stands before the first dash of the name."""
    return Contestant(
        name,
        lambda: engine(name.split("-", maxsplit=1)[0]),
        {"workers": 2} | training,
        repeats=repeats,
        faults=faults,
        trains=trains,
        watched=watched,
        marks=marks,
    )


CONTESTANTS = [
    Contestant(
        "test", ForkEngine, {"workers": 1, "framework": "numpy", "learning_rate": 1e-2}, 0.97
    ),
    contestant("local"),
    contestant("local-torch", framework="torch", faults=False),
    contestant("tensorflowonspark-lanes"),
    contestant("tensorflowonspark-spark", feed="spark", trains=False),
    contestant("tensorflowonspark-async", mode="async", repeats=False),
    contestant(
        "tensorflowonspark-async-spark",
        mode="async",
        feed="spark",
        repeats=False,
        trains=False,
        faults=False,
    ),
    contestant("elephas-sync", round_steps=4, transport="socket"),
    contestant("elephas-async", mode="async", repeats=False),
    contestant("elephas-hogwild", mode="hogwild", transport="socket", repeats=False, faults=False),
    contestant("bigdl", framework="bigdl", watched=False),
    contestant("torch-ddp", framework="torch"),
    contestant("torch-fsdp", framework="torch", sharding="parameters", trains=False, faults=False),
    contestant("bigdl-torch", framework="torch"),
    contestant(
        "deepspeed-zero1", framework="torch", sharding="optimizer", trains=False, faults=False
    ),
    contestant(
        "deepspeed-zero2", framework="torch", sharding="gradients", trains=False, faults=False
    ),
    contestant("deepspeed-zero3", framework="torch", sharding="parameters"),
    contestant("horovod-tensorflow", marks=(WITH_HOROVOD,)),
    contestant(
        "horovod-torch", framework="torch", trains=False, faults=False, marks=(WITH_HOROVOD,)
    ),
]

FIRST_OF_ENGINES = [*{one.name.partition("-")[0]: one for one in reversed(CONTESTANTS)}.values()]


def resumed(run: TrainingRun, step: int) -> TrainingRun:
    """The same run, to go on from the checkpoint before a step."""
    return dataclasses.replace(run, first_step=step)
