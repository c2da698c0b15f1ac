"""ZeRO by DeepSpeed, started by Spark's DeepspeedTorchDistributor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.base import Mode
from pipelines.engines.distributor_engine import NEEDS, DistributorEngine, distributor_rules

if TYPE_CHECKING:
    from pipelines.engines.distributor import MonitoredDistributor
    from pipelines.settings import Config


class DeepSpeedEngine(DistributorEngine):
    """The state of training split between the workers, by one of ZeRO's stages."""

    name = "deepspeed"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers.",
            choose_when="The state of training does not fit into each worker: it is split, the "
            "optimiser's arrays (`training.sharding: optimizer`, ZeRO 1), the gradients too "
            "(`gradients`, ZeRO 2), or the weights as well (`parameters`, ZeRO 3). With "
            "`pipeline_parallel` the layers are divided into stages instead, and `optimizer` "
            "splits between the replicas.",
            needs=NEEDS,
        )
    }
    # The stepper reads the stage from `training.sharding`.
    steppers: ClassVar = dict.fromkeys(("optimizer", "gradients", "parameters"), "deepspeed")
    divided_steppers: ClassVar = {("pipeline_parallel", "optimizer"): "deepspeed-pipeline"}
    shardings = tuple(steppers)
    options = ("offload", "pipeline_parallel")
    libraries = ("deepspeed", "torch")
    rules = distributor_rules("deepspeed.spark.distributor.ignoreSsl")

    @override
    def stepper_preloads(self, config: Config) -> tuple[str, ...]:
        # DeepSpeed looks for accelerators while it is imported: a process forked after that cannot
        # use a GPU, and all workers would have the device that the daemon found.
        return ("pipelines.training.steppers.sharded",)

    @override
    def distributor(self, workers: int, use_gpu: bool) -> MonitoredDistributor:
        from pipelines.engines.distributor import MonitoredDeepspeedDistributor

        # No configuration: the library would write it to a file, and leave that behind.
        return MonitoredDeepspeedDistributor(
            numGpus=1, nnodes=workers, localMode=False, useGpu=use_gpu, deepspeedConfig=None
        )
