"""Megatron-Core's tensor, pipeline and data parallel."""

from __future__ import annotations

from typing import ClassVar

from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode


class MegatronEngine(BarrierEngine):
    """Divides the encoder between workers, and the optimiser's arrays between replicas."""

    name = "megatron"
    best_for = "Megatron-Core layers and schedules"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers and in any "
            "layout.",
            choose_when="You want Megatron-Core's layers and schedules for a large encoder of the "
            "BERT family. `training.model_parallel` divides matrices, "
            "`training.pipeline_parallel` layers. Replicas share the optimiser's arrays. `torch` "
            "has the same layouts without another library.",
            needs=NEEDS,
        )
    }
    steppers: ClassVar = {"none": "megatron"}
    divided_steppers: ClassVar = dict.fromkeys(
        (("model_parallel", "none"), ("pipeline_parallel", "none")), "megatron"
    )
    shardings = tuple(steppers)
    options = ("model_parallel", "pipeline_parallel")
    libraries = ("megatron", "torch")
    rules = barrier_rules("pytorch.spark.distributor.ignoreSsl")
