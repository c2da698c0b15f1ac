"""Megatron-Core's tensor, pipeline and data parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pipelines.catalog import LOSSES
from pipelines.engines.barrier_engine import NEEDS, BarrierEngine, barrier_rules
from pipelines.engines.base import Mode
from pipelines.errors import InputError

if TYPE_CHECKING:
    from pipelines.settings import Config


class MegatronEngine(BarrierEngine):
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
    rules = barrier_rules("pytorch.spark.distributor.ignoreSsl")

    @override
    def check_settings(self, config: Config) -> None:
        super().check_settings(config)
        training, encoder = config.training, config.encoder
        refused: tuple[tuple[bool, str, str, str], ...] = (
            (
                training.ema is not None,
                "training.ema",
                "engine megatron's optimiser keeps no average",
                "leave it out, or training.engine: torch",
            ),
            (
                training.tokens_per_micro_batch is not None,
                "training.tokens_per_micro_batch",
                "the micro-batches of engine megatron are whole granules",
                "leave it out, and lower lanes.granule",
            ),
            (
                encoder.lora.rank > 0,
                "encoder.lora.rank",
                "engine megatron trains all of an encoder",
                "set it to 0, or training.engine: torch",
            ),
            (
                encoder.freeze.is_on,
                "encoder.freeze",
                "engine megatron trains all of an encoder",
                "leave it out, or training.engine: torch",
            ),
        )
        for is_asked, key, problem, remedy in refused:
            if is_asked:
                raise InputError(key, problem, remedy)
        for name in {one.objective.name for one in config.by_source()}:
            if LOSSES.load(name).reconstruction is not None:
                raise InputError(
                    "objective.name",
                    f"engine megatron has no decoder, which `{name}` needs",
                    "another objective.name, or training.engine: torch",
                )
