"""The device of a worker, and the precision of its matrix products. Runs on an executor.

PyTorch is imported only when a worker of PyTorch asks for its device: TensorFlow's workers agree on
a precision here too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from pipelines.errors import InputError
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import Collectives

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

CUDA_DEVICES = "CUDA_VISIBLE_DEVICES"
_AT_START = {name: os.environ[name] for name in (CUDA_DEVICES, "LOCAL_RANK") if name in os.environ}
"""The variables before a task changes them: Spark gives the process further tasks."""


def worker_device() -> torch.device:
    """Return the GPU or CPU of this worker of PyTorch; see :func:`own_device`."""
    import torch

    return torch.device(own_device() if torch.cuda.is_available() else "cpu")


def own_device() -> str:
    """Return the name of this worker's device, on a machine with GPUs visible to the framework.

    The worker uses a GPU from Spark (the task's resource ``gpu``), or else the one at
    ``LOCAL_RANK`` among those in ``CUDA_VISIBLE_DEVICES``. Other GPUs stay untouched, since other
    processes may use them; a log line mentions them.
    """
    device = choose_device(next(iter(gpus_given_by_spark()), None), os.environ)
    # An empty variable is a wish for no GPU.
    if device == "cpu" and CUDA_DEVICES not in os.environ:
        _warn_of_unused_gpus()
    return device


@cache
def _warn_of_unused_gpus() -> None:
    """Log unused GPUs once in a process, since all its tasks ask."""
    logger.warning(
        "this machine has a GPU, but neither Spark nor %s has given this process one."
        " It computes on the CPU",
        CUDA_DEVICES,
    )


def choose_device(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the name of a worker's device on a machine with GPUs.

    `given` is the address of the task's GPU from Spark.
    """
    visible = [name for name in environment.get(CUDA_DEVICES, "").split(",") if name]
    # PyTorch numbers only the visible GPUs, from 0.
    if given in visible:
        return f"cuda:{visible.index(given)}"
    if given is not None and (not visible or given in map(str, range(len(visible)))):
        return f"cuda:{given}"
    if visible:
        return f"cuda:{int(environment.get('LOCAL_RANK', '0')) % len(visible)}"
    return "cpu"


def show_one_gpu(given: str) -> None:
    """Show this process the GPU of its task alone, for a library that takes the first one.

    `given` is the address from Spark.

    Raises:
        InputError: The process computes on another GPU already.
    """
    import torch

    visible = [name for name in _AT_START.get(CUDA_DEVICES, "").split(",") if name]
    number = choose_device(given, _AT_START).removeprefix("cuda:")
    gpu = visible[int(number)] if visible else number
    if not torch.cuda.is_initialized():
        os.environ[CUDA_DEVICES] = gpu
        return
    # From here on CUDA does not read the variable any more.
    first = os.environ.get(CUDA_DEVICES, "").partition(",")[0] or "0"
    if first != gpu:
        raise InputError(
            "spark.python.worker.reuse",
            f"a Python worker that computes on GPU {first} cannot move to GPU {gpu}",
            "Set it to false, or give each executor one GPU",
        )


def gpus_given_by_spark() -> Sequence[str]:
    """Return the addresses of the Spark task's resource ``gpu``; none outside a task."""
    try:
        from pyspark import TaskContext
    except ImportError:
        return ()  # Without Spark this is no task.
    context = TaskContext.get()
    resource = context.resources().get("gpu") if context is not None else None
    return resource.addresses if resource is not None else ()


def with_precision(
    training: TrainingSettings, collectives: Collectives, *, has_bf16: bool
) -> TrainingSettings:
    """Return the settings with ``precision: auto`` resolved, alike on all these workers.

    All workers of `collectives` call this at once. Workers without collective operations decide
    alone; the driver compares their precisions and ends the run if they differ.

    Args:
        has_bf16: Whether this worker's device has bf16 instructions, and so is about twice as fast
            in bf16. Other devices emulate them, and take many times as long.
    """
    if training.precision != "auto":
        return training
    everywhere = np.array([has_bf16], np.float32)
    if collectives.workers > 1:
        everywhere = np.asarray(collectives.all_gather(everywhere))
    return training.model_copy(update={"precision": "bf16" if everywhere.all() else "fp32"})
