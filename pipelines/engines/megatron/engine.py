"""Megatron-Core's tensor, pipeline and data parallel."""

from __future__ import annotations

from typing import ClassVar

from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode


class MegatronEngine(BarrierEngine):
    """Divides the encoder between workers, and the optimiser's arrays between replicas."""

    name = "megatron"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers, however "
            "the encoder is divided between them.",
            choose_when="Each layer, or all layers, of an encoder of the BERT family are too large "
            "for a worker, and Megatron-Core's layers and schedules are wanted: "
            "`training.model_parallel` divides matrices, `training.pipeline_parallel` layers. "
            "Replicas share out the optimiser's arrays. `torch` divides in the same way, and "
            "needs no other library.",
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
