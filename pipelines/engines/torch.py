"""PyTorch's own distributed training."""

from __future__ import annotations

from typing import ClassVar

from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode


class TorchEngine(BarrierEngine):
    """Trains data parallel, fully sharded, or with a divided encoder."""

    name = "torch"
    best_for = "most runs; GPUs and CPUs"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers and with "
            "any `training.sharding`. With `training.compression: bf16` the curve is close to it.",
            choose_when="Executors are equally fast. `sharding: none` (data parallel) is the "
            "fastest. `sharding: parameters` (FSDP) trains encoders larger than a worker's memory. "
            "`model_parallel` and `pipeline_parallel` help where one layer, or the activations of "
            "one granule, do not fit either.",
            needs=NEEDS,
        )
    }
    steppers: ClassVar = {"none": "torch", "parameters": "torch-fsdp"}
    divided_steppers: ClassVar = {
        ("model_parallel", "none"): "torch-tensor",
        ("model_parallel", "parameters"): "torch-tensor-fsdp",
        ("pipeline_parallel", "none"): "torch-pipeline",
    }
    shardings = tuple(steppers)
    options = ("compression", "model_parallel", "offload", "pipeline_parallel")
    libraries = ("torch",)
    rules = barrier_rules("pytorch.spark.distributor.ignoreSsl")
