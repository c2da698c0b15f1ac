"""A worker of Orca's: what runs on an executor, in a child of the Spark task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from bigdl.orca.learn.pytorch import pytorch_pyspark_worker
from bigdl.orca.learn.pytorch.callbacks.maincallback import MainCallback
from pyspark import TaskContext

from pipelines.engines.spark_engine import run_in_child
from pipelines.runs.run import WorkerTask
from pipelines.training.collectives.interfaces import prefer_interface_to
from pipelines.training.collectives.process_group import (
    GroupCollectives,
    means_peer_lost,
    process_group_cleanup,
)
from pipelines.training.control.reporter import Reporter
from pipelines.training.loop import SharedSteps, run_worker
from pipelines.training.steppers.base import Stepper, StepperFactory, StepWork

OrcaWorker = Callable[[Iterator[Any]], Any]

# Of this process: makes its steps; called once Orca has joined the process group.
_make_steps: ContextVar[Callable[[GroupCollectives], SharedSteps]] = ContextVar("make_steps")


def run_in_task(function: OrcaWorker, task: WorkerTask, items: Iterator[Any]) -> Iterator[Any]:
    """Run Orca's worker in a child process, and wait for its end. Runs in a Spark task.

    Args:
        function: Orca's, which makes its worker and trains.
        task: Of rank 0.
        items: Of the partition; ignored.
    """
    context = TaskContext.get()
    assert context is not None
    run_in_child(replace(task, rank=context.partitionId()), partial(_work, function))
    return iter(())


def _work(function: OrcaWorker, task: WorkerTask) -> None:
    # Orca's process group is of Gloo, for CPUs.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with process_group_cleanup():
        loop = partial(_train_in_orca, function)
        run_worker(task, loop=loop, means_peer_lost=means_peer_lost)


def _train_in_orca(
    function: OrcaWorker,
    task: WorkerTask,
    stepper_factory: StepperFactory[Stepper],
    _: object,
    feed: Iterator[StepWork],
    reporter: Reporter,
) -> None:
    """The loop of the run, which is Orca's; see :func:`pipelines.training.loop.train_worker`."""
    # Orca compares how addresses begin, and takes 10.0.0.1 and 10.0.0.12 for one host.
    pytorch_pyspark_worker.get_rank = lambda cluster_info: task.rank
    prefer_interface_to(task.monitor)
    _make_steps.set(
        lambda collectives: SharedSteps(task, stepper_factory, collectives, feed, reporter)
    )
    function(iter(()))


@dataclass(frozen=True)
class Batches:
    """The worker's steps in the shape of a data loader, which Orca's loop goes through."""

    steps: SharedSteps

    def __iter__(self) -> Iterator[tuple[np.ndarray, StepWork]]:
        """Pairs of an array that has as many rows as the step examples, and the step.

        Orca counts the examples by the first.
        """
        for work in self.steps:
            yield np.empty((sum(granule.examples for granule in work.granules), 0)), work


def granules_of_worker(config: dict[str, Any], batch_size: int) -> Batches:
    """Orca's ``data_creator``: the granules of this worker, step by step."""
    return Batches(_make_steps.get()(GroupCollectives(torch.device("cpu"))))


class StepByStep(MainCallback):  # type: ignore[misc] # the library has no types
    """Has Orca's loop make one optimiser update of each batch."""

    def on_train_forward(self, runner: Any) -> None:
        """Make the step, with the other workers."""
        _, work = runner.batch
        runner.loss = torch.tensor(runner.train_loader.steps.make(work))

    def on_iter_backward(self, runner: Any) -> None:
        """Nothing: the step had its gradients and its update."""

    def on_lr_adjust(self, runner: Any) -> None:
        """Nothing: each step knows its learning rate."""


def no_model(config: dict[str, Any]) -> torch.nn.Module:
    """Orca's ``model_creator``: the smallest that it accepts; the stepper has the encoder."""
    return torch.nn.Linear(1, 1, bias=False)


def no_optimizer(model: torch.nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Orca's ``optimizer_creator``; never asked to step."""
    return torch.optim.SGD(model.parameters())
