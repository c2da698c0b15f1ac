"""The ways in which :mod:`.ranks` has workers train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Way:
    """How workers train.

    Attributes:
        stepper: A name of ``pipelines.catalog.STEPPERS``.
        settings: By section.
        library: What it needs beside PyTorch.
        workers: How many share the device, where there are several.
    """

    stepper: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    library: str | None = None
    workers: int = 2


def _training(stepper: str, library: str | None = None, workers: int = 2, **settings: Any) -> Way:
    return Way(stepper=stepper, settings={"training": settings}, library=library, workers=workers)


ALONE: Mapping[str, Way] = {
    "torch": Way(stepper="torch"),
    "FSDP": _training("torch-fsdp", sharding="parameters"),
    "FSDP, optimiser on the CPU": _training("torch-fsdp", sharding="parameters", offload="cpu"),
    "FSDP, optimiser on the disk": _training("torch-fsdp", sharding="parameters", offload="disk"),
    "ZeRO-1": _training("deepspeed", "deepspeed", sharding="optimizer"),
    "ZeRO-3": _training("deepspeed", "deepspeed", sharding="parameters"),
    "ZeRO-3, optimiser on the CPU": _training(
        "deepspeed", "deepspeed", sharding="parameters", offload="cpu"
    ),
}
"""Of one worker, a replica of its own."""
SEVERAL: Mapping[str, Way] = {
    "torch": Way(stepper="torch"),
    "negatives of the step": Way(stepper="torch", settings={"objective": {"negatives": "step"}}),
    "FSDP": _training("torch-fsdp", sharding="parameters"),
    "tensor parallel": _training("torch-tensor", model_parallel=2),
    "tensor parallel, negatives of the step": Way(
        stepper="torch-tensor",
        settings={"training": {"model_parallel": 2}, "objective": {"negatives": "step"}},
    ),
    "tensor parallel, FSDP": _training(
        "torch-tensor-fsdp", workers=4, model_parallel=2, sharding="parameters"
    ),
    "tensor parallel, FSDP, optimiser on the CPU": _training(
        "torch-tensor-fsdp", workers=4, model_parallel=2, sharding="parameters", offload="cpu"
    ),
    "pipeline": _training("torch-pipeline", pipeline_parallel=2),
    "DeepSpeed's pipeline": _training("deepspeed-pipeline", "deepspeed", pipeline_parallel=2),
    "ZeRO-3": _training("deepspeed", "deepspeed", sharding="parameters"),
    "Megatron's tensor parallel": _training("megatron", "megatron.core", model_parallel=2),
    "Megatron's pipeline": _training("megatron", "megatron.core", pipeline_parallel=2),
}
"""Of workers on one device."""
