"""Megatron-Core's tensor, pipeline and data parallel, started by Spark's TorchDistributor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Mode
from pipelines.engines.distributor_engine import NEEDS, DistributorEngine, distributor_rules

if TYPE_CHECKING:
    from pipelines.engines.distributor import MonitoredDistributor


class MegatronEngine(DistributorEngine):
    """The encoder divided between workers, and the optimiser's arrays between replicas."""

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
    rules = distributor_rules("pytorch.spark.distributor.ignoreSsl")

    @override
    def distributor(self, workers: int, use_gpu: bool) -> MonitoredDistributor:
        from pipelines.engines.distributor import MonitoredDistributor

        return MonitoredDistributor(workers, local_mode=False, use_gpu=use_gpu)
