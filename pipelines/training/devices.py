"""Which device a worker of PyTorch computes on. Runs on an executor."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from pipelines.training.resources import gpus_given_by_spark


def worker_device() -> torch.device:
    """The GPU that this worker was given, or the CPU.

    A GPU is used if Spark gave the task one (the resource ``gpu``), or ``CUDA_VISIBLE_DEVICES``
    names some, of which the worker takes the one that ``LOCAL_RANK`` counts to. A GPU that nobody
    gave the worker stays untouched, since others may be at work on it.
    """
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
    if given is not None:
        # PyTorch counts the visible ones only.
        return f"cuda:{visible.index(given) if given in visible else given}"
    if visible:
        return f"cuda:{int(environment.get('LOCAL_RANK', '0')) % len(visible)}"
    return "cpu"
