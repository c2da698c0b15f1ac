"""The device of a worker, and the precision it multiplies matrices in. Runs on an executor.

PyTorch is imported only where a worker of PyTorch asks for its device: TensorFlow's workers agree
on a precision here too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives

if TYPE_CHECKING:
    import torch


def worker_device() -> torch.device:
    """The GPU that this worker of PyTorch was given, or the CPU.

    A GPU is used if Spark gave the task one (the resource ``gpu``), or ``CUDA_VISIBLE_DEVICES``
    names some, of which the worker takes the one that ``LOCAL_RANK`` counts to. A GPU that was not
    assigned to the worker stays untouched, since other processes may be using it.
    """
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(choose_device(next(iter(gpus_given_by_spark()), None), os.environ))


def choose_device(given: str | None, environment: Mapping[str, str]) -> str:
    """The name of a worker's device where there are GPUs.

    Args:
        given: Address of the GPU that Spark gave the task.
        environment: Of the process.
    """
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    # PyTorch counts the visible ones only.
    if given in visible:
        return f"cuda:{visible.index(given)}"
    if given is not None and (not visible or given in map(str, range(len(visible)))):
        return f"cuda:{given}"
    if visible:
        return f"cuda:{int(environment.get('LOCAL_RANK', '0')) % len(visible)}"
    return "cpu"


def gpus_given_by_spark() -> Sequence[str]:
    """Addresses of the Spark task's resource ``gpu``; none outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    resource = context.resources().get("gpu") if context is not None else None
    return resource.addresses if resource is not None else ()


def with_precision(
    training: TrainingSettings, collectives: Collectives, *, has_bf16: bool
) -> TrainingSettings:
    """The settings with what ``precision: auto`` means for these workers, the same on all of them.

    Workers without collective operations decide alone; the driver compares their precisions and
    ends the run if they differ.

    Args:
        training: The settings.
        collectives: Between the workers, all of which call this at once.
        has_bf16: Whether this worker's device has instructions for bf16. It is then about twice as
            fast in it; one without them emulates them, and takes many times as long.
    """
    if training.precision != "auto":
        return training
    everywhere = np.array([has_bf16], np.float32)
    if collectives.workers > 1:
        everywhere = np.asarray(collectives.all_gather(everywhere))
    return training.model_copy(update={"precision": "bf16" if everywhere.all() else "fp32"})
