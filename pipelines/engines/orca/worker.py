"""A worker of Orca's, in a child of the Spark task. Runs on an executor."""

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

# Makes the steps of this process; Orca calls it after it has joined the process group.
_make_steps: ContextVar[Callable[[GroupCollectives], SharedSteps]] = ContextVar("make_steps")


def run_in_task(function: OrcaWorker, task: WorkerTask, items: Iterator[Any]) -> Iterator[Any]:
    """Run Orca's worker in a child process, and wait for its end. Runs in a Spark task.

    Orca's function makes its worker and trains. The task belongs to rank 0; the items do not count.
    """
    context = TaskContext.get()
    assert context is not None
    run_in_child(replace(task, rank=context.partitionId()), partial(_work, function))
    return iter(())


def _work(function: OrcaWorker, task: WorkerTask) -> None:
    # Orca's process group uses Gloo, for CPUs.
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
    """Run Orca's loop as that of the run; see :func:`pipelines.training.loop.train_worker`."""
    # Orca compares prefixes of addresses, and takes 10.0.0.1 and 10.0.0.12 for one host.
    pytorch_pyspark_worker.get_rank = lambda cluster_info: task.rank
    prefer_interface_to(task.monitor)
    _make_steps.set(
        lambda collectives: SharedSteps(task, stepper_factory, collectives, feed, reporter)
    )
    function(iter(()))


@dataclass(frozen=True)
class Batches:
    """The worker's steps as a data loader for Orca's loop."""

    steps: SharedSteps

    def __iter__(self) -> Iterator[tuple[np.ndarray, StepWork]]:
        """Yield an array and a step; Orca counts its examples by the rows of the array."""
        for work in self.steps:
            yield np.empty((sum(granule.examples for granule in work.granules), 0)), work


def granules_of_worker(config: dict[str, Any], batch_size: int) -> Batches:
    """Return the granules of this worker, step by step: Orca's ``data_creator``."""
    return Batches(_make_steps.get()(GroupCollectives(torch.device("cpu"))))


class StepByStep(MainCallback):  # type: ignore[misc] # the library has no types
    """Makes one optimiser update of each batch of Orca's loop."""

    def on_train_forward(self, runner: Any) -> None:
        """Make the step, with the other workers."""
        _, work = runner.batch
        runner.loss = torch.tensor(runner.train_loader.steps.make(work))

    def on_iter_backward(self, runner: Any) -> None:
        """Do nothing: the step had its gradients and its update."""

    def on_lr_adjust(self, runner: Any) -> None:
        """Do nothing: each step knows its learning rate."""


def no_model(config: dict[str, Any]) -> torch.nn.Module:
    """Return Orca's smallest valid model, for ``model_creator``; the stepper has the encoder."""
    return torch.nn.Linear(1, 1, bias=False)


def no_optimizer(model: torch.nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    """Return an optimiser that never steps: Orca's ``optimizer_creator``."""
    return torch.optim.SGD(model.parameters())
