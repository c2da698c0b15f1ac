"""ZeRO and pipelines by DeepSpeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode

if TYPE_CHECKING:
    from pipelines.settings import Config


class DeepSpeedEngine(BarrierEngine):
    """Shards the training state between the workers, by one of ZeRO's stages."""

    name = "deepspeed"
    best_for = "large encoders, sharded by ZeRO"
    modes: ClassVar = {
        "sync": Mode(
            guarantee="The loss curve of `local` with PyTorch, on any number of workers.",
            choose_when="The training state does not fit into one worker. `training.sharding` "
            "splits the optimiser's arrays (`optimizer`, ZeRO 1), also the gradients "
            "(`gradients`, ZeRO 2), or also the weights (`parameters`, ZeRO 3). "
            "`pipeline_parallel` divides the layers into stages; `optimizer` then splits between "
            "the replicas.",
            needs=NEEDS,
        )
    }
    # The stepper reads the stage from `training.sharding`.
    steppers: ClassVar = dict.fromkeys(("optimizer", "gradients", "parameters"), "deepspeed")
    divided_steppers: ClassVar = {("pipeline_parallel", "optimizer"): "deepspeed-pipeline"}
    shardings = tuple(steppers)
    options = ("offload", "pipeline_parallel")
    libraries = ("deepspeed", "torch")
    rules = barrier_rules("deepspeed.spark.distributor.ignoreSsl")

    @override
    def stepper_preloads(self, config: Config) -> tuple[str, ...]:
        # The import of DeepSpeed looks for accelerators: a process forked after that cannot use a
        # GPU, and all workers would have the daemon's device.
        return ("pipelines.training.steppers.sharded",)
