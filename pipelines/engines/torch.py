"""PyTorch's own distributed training."""

from __future__ import annotations

from typing import ClassVar

from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode


class TorchEngine(BarrierEngine):
    """Trains data parallel, fully sharded, or with the encoder divided between workers."""

    name = "torch"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers, whether "
            "each holds the whole state or a part of it (`training.sharding`).",
            choose_when="PyTorch computes, and executors are alike. `sharding: none` is data "
            "parallel and the fastest; `parameters` (FSDP) is for encoders that do not fit, "
            "`model_parallel` and `pipeline_parallel` for those of which one layer, or a granule's "
            "activations, would not.",
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
    options = ("model_parallel", "offload", "pipeline_parallel")
    libraries = ("torch",)
    rules = barrier_rules("pytorch.spark.distributor.ignoreSsl")
