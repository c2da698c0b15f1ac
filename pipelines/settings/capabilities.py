"""The table of unsupported combinations, for refusals and docs/reference/engines.md.

A limit names a feature, the trainings without it, and why. Limits of frameworks, modes and layouts
are checked with the settings, those of an engine before it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.settings.corpus import CorpusSettings
from pipelines.settings.encoder import EncoderSettings
from pipelines.settings.objective import ObjectiveSettings
from pipelines.settings.training import TrainingSettings


class Asked(NamedTuple):
    """The settings behind the features of a training; `objectives` has one per source."""

    training: TrainingSettings
    encoder: EncoderSettings
    corpus: CorpusSettings
    objectives: Sequence[ObjectiveSettings]


@dataclass(frozen=True)
class Feature:
    """Something that settings may ask for by a key; `name` is for people."""

    key: str
    name: str
    is_asked: Callable[[Asked], bool]


@dataclass(frozen=True)
class Scope:
    """Trainings with a common limit; `name` is for people.

    Attributes:
        engine: Whose limit it is, or :data:`ANY_ENGINE`; None if it is checked when settings are
            read.
    """

    name: str
    holds: Callable[[TrainingSettings], bool] = lambda training: True
    engine: str | None = None


class Limit(NamedTuple):
    """A cell of the table: a feature without support in the trainings of a scope.

    Attributes:
        problem: Why, for `str.format` with ``training``.
        key: The setting at fault, if it is not the feature's.
    """

    feature: Feature
    scope: Scope
    problem: str
    remedy: str
    key: str = ""


def _uses_step_negatives(asked: Asked) -> bool:
    return any(
        getattr(objective, "negatives", "granule") == "step"
        and LOSSES.load(objective.name).uses_negatives
        for objective in asked.objectives
    )


def _has_own_weights(asked: Asked) -> bool:
    return any(LOSSES.load(objective.name).token_loss is not None for objective in asked.objectives)


def _may_drop(asked: Asked) -> bool:
    """Tell whether there may be dropout: a checkpoint may have its own."""
    share = asked.training.dropout
    return asked.encoder.start != "random" if share is None else share > 0


BF16 = Feature("training.precision", "bf16", lambda asked: asked.training.precision == "bf16")
EMA = Feature("training.ema", "moving average", lambda asked: asked.training.ema is not None)
PATIENCE = Feature("training.patience", "early end", lambda asked: bool(asked.training.patience))
MINUTES = Feature(
    "training.checkpoint_minutes",
    "checkpoints by the clock",
    lambda asked: asked.training.checkpoint_minutes is not None,
)
LORA = Feature("encoder.lora.rank", "LoRA", lambda asked: asked.encoder.lora.rank > 0)
FREEZE = Feature("encoder.freeze", "frozen parts", lambda asked: asked.encoder.freeze.is_on)
DROPOUT = Feature("training.dropout", "dropout", _may_drop)
STEP_NEGATIVES = Feature("objective.negatives", "negatives of a step", _uses_step_negatives)
OWN_WEIGHTS = Feature("objective.name", "losses with weights of their own", _has_own_weights)
WIDTHS = Feature(
    "objective.dimensions",
    "several widths",
    lambda asked: any(objective.dimensions for objective in asked.objectives),
)
NOT_PLAIN = Feature(
    "objective.directions",
    "directions, hardness, margins",
    lambda asked: not all(getattr(objective, "is_plain", True) for objective in asked.objectives),
)
SOURCES = Feature("corpus.sources", "several sources", lambda asked: bool(asked.corpus.sources))
MICRO_BATCHES = Feature(
    "training.tokens_per_forward",
    "micro-batches",
    lambda asked: asked.training.tokens_per_forward is not None,
)
CHECKPOINTING = Feature(
    "training.activation_checkpointing",
    "activation checkpointing",
    lambda asked: asked.training.activation_checkpointing,
)
COMPILING = Feature("training.compile", "compiled layers", lambda asked: asked.training.compile)
COMPRESSION = Feature(
    "training.compression", "compression", lambda asked: asked.training.compression != "none"
)
FP16_GRADIENTS = Feature(
    "training.compression", "fp16 gradients", lambda asked: asked.training.compression == "fp16"
)
BF16_GRADIENTS = Feature(
    "training.compression", "bf16 gradients", lambda asked: asked.training.compression == "bf16"
)
OFFLOAD = Feature("training.offload", "offload", lambda asked: asked.training.offload != "none")
MEMBERS = Feature(
    "training.model_parallel",
    "divided matrices",
    lambda asked: asked.training.placement.members > 1,
)
LAYERS = Feature(
    "training.pipeline_parallel",
    "divided layers",
    lambda asked: asked.training.placement.members == 1 and asked.training.placement.stages > 1,
)

ANY_ENGINE = "*"

NOT_TORCH = Scope(
    "other frameworks than `torch`",
    lambda training: training.framework != "torch" and not training.chooses_framework,
)
BIGDL = Scope("framework `bigdl`", lambda training: training.framework == "bigdl")
ALONE = Scope("modes `async`, `hogwild`", lambda training: training.mode != "sync")
NOT_TOGETHER = Scope(
    "modes `async`, `hogwild`; framework `bigdl`",
    lambda training: training.mode != "sync" or training.framework == "bigdl",
)
SHARDED = Scope("a sharding", lambda training: training.sharding != "none")
STAGES = Scope("stages", lambda training: training.pipeline_parallel > 1)
FED = Scope("feed `spark`", lambda training: training.feed == "spark")
ANY_STAGES = Scope(STAGES.name, STAGES.holds, ANY_ENGINE)
DIVIDED = Scope("divided matrices", lambda training: training.model_parallel > 1, ANY_ENGINE)
STAGES_ALONE = Scope(
    "stages of whole matrices",
    lambda training: training.model_parallel == 1 and training.pipeline_parallel > 1,
    ANY_ENGINE,
)
UNSHARDED = Scope("no sharding", lambda training: training.sharding == "none", ANY_ENGINE)
DLLIB = Scope("`bigdl` (dllib)", BIGDL.holds, "bigdl")
ORCA = Scope("`bigdl` (Orca)", lambda training: training.framework == "torch", "bigdl")
HOROVOD = Scope("`horovod`", engine="horovod")
TORCH = Scope("`torch`", engine="torch")
TORCH_PARTS = Scope(
    "`torch` with a sharding, divided matrices or stages",
    lambda training: training.sharding != "none" or training.placement.is_divided,
    "torch",
)
DEEPSPEED_STAGES = Scope("`deepspeed` with stages", STAGES.holds, "deepspeed")
ELEPHAS = Scope("`elephas` sync", lambda training: training.mode == "sync", "elephas")
ELEPHAS_WORKERS = Scope(
    "`elephas` sync with several workers",
    lambda training: training.mode == "sync" and training.workers > 1,
    "elephas",
)
MEGATRON = Scope("`megatron`", engine="megatron")
MESH = Scope("`mesh`", engine="mesh")

_LEAVE_OUT = "Leave it out, or set training.engine to torch"
_LEAVE_0 = "Set it to 0, or training.engine to torch"
_GRANULE = "Set it to granule, or training.engine to torch"
_TORCH = "Leave it out, or set training.framework to torch"
_SPLIT = "Leave it out, or set training.engine to torch and training.sharding to none"
_TOGETHER = "Leave it out, or set training.mode to sync with another framework than bigdl"
_SYNC = "Leave it at 1, or set training.mode to sync"
_FRAMEWORKS = "Choose one of tensorflow, torch"
_WHOLE_GRANULES = "Leave it out, and lower lanes.granule"
_BY_STEPS = "Leave it out, and set training.checkpoint_every"
_MODE = "mode `{training.mode}` of framework `{training.framework}` does not support it"
_ALL_TRAINED = "training.sharding `{training.sharding}` trains all weights"
_WHOLE = "each worker holds the whole encoder in mode `{training.mode}`"
_MEET = "the workers in mode `{training.mode}` meet only at checkpoints of known steps"
_ROUNDS = "the workers of engine elephas have separate states between two averages"
_APART = "the workers of engine elephas do not meet inside a step, so it cannot be `step`"
_UNDIVIDED = "LoRA's small matrices stay undivided"
_WRITTEN_OUT = "the loss reconstructs texts with undivided weights"
_NO_LORA = "Leave it at 1, or set encoder.lora.rank to 0"
_OTHER_LOSS = "Leave it at 1, or choose another objective.name"
_BY_MEMBERS, _BY_STAGES = "training.model_parallel", "training.pipeline_parallel"
_MEGATRON_ALL = "engine megatron trains all of an encoder"

LIMITS: tuple[Limit, ...] = (
    Limit(SOURCES, BIGDL, "bigdl trains on one source only", _FRAMEWORKS, "training.framework"),
    Limit(
        WIDTHS,
        BIGDL,
        "bigdl trains embeddings of the full width only",
        f"{_FRAMEWORKS}, or leave objective.dimensions out",
        "training.framework",
    ),
    Limit(
        NOT_PLAIN,
        BIGDL,
        "bigdl knows query_to_doc only, without hardness and margin",
        _FRAMEWORKS,
        "training.framework",
    ),
    Limit(FREEZE, BIGDL, "`bigdl` trains all weights", _TORCH),
    Limit(FREEZE, SHARDED, _ALL_TRAINED, _SPLIT),
    Limit(FREEZE, MEGATRON, _MEGATRON_ALL, _LEAVE_OUT),
    Limit(FREEZE, MESH, "engine mesh trains all weights", _LEAVE_OUT),
    Limit(
        FREEZE,
        ANY_STAGES,
        "a stage of frozen layers has no gradient to pass on",
        "Leave it at 1, or leave encoder.freeze out",
        _BY_STAGES,
    ),
    Limit(LORA, BIGDL, "`bigdl` trains all weights", _TORCH),
    Limit(LORA, SHARDED, _ALL_TRAINED, _SPLIT),
    Limit(LORA, MEGATRON, _MEGATRON_ALL, _LEAVE_0),
    Limit(LORA, MESH, "engine mesh has no dimensions for LoRA's matrices", _LEAVE_0),
    Limit(LORA, DIVIDED, _UNDIVIDED, _NO_LORA, _BY_MEMBERS),
    Limit(LORA, STAGES_ALONE, _UNDIVIDED, _NO_LORA, _BY_STAGES),
    Limit(BF16, DLLIB, "dllib computes in fp32", "Set it to fp32"),
    Limit(
        BF16, MESH, "engine mesh computes in fp32", "Set it to fp32, or training.engine to torch"
    ),
    Limit(
        DROPOUT,
        DLLIB,
        "framework bigdl has no dropout, and an unset value means that of the start",
        "Set it to 0",
    ),
    Limit(STEP_NEGATIVES, DLLIB, "framework bigdl sees one granule at a time", "Set it to granule"),
    Limit(STEP_NEGATIVES, MESH, "engine mesh compares only the texts of one granule", _GRANULE),
    Limit(
        STEP_NEGATIVES,
        DEEPSPEED_STAGES,
        "DeepSpeed's pipelines see one granule at a time",
        _GRANULE,
    ),
    Limit(STEP_NEGATIVES, ELEPHAS_WORKERS, _APART, "Set it to granule, or training.mode to async"),
    Limit(
        OWN_WEIGHTS,
        MEGATRON,
        "engine megatron has no decoder, which the loss needs",
        "Choose another objective.name, or set training.engine to torch",
    ),
    Limit(OWN_WEIGHTS, DIVIDED, _WRITTEN_OUT, _OTHER_LOSS, _BY_MEMBERS),
    Limit(OWN_WEIGHTS, STAGES_ALONE, _WRITTEN_OUT, _OTHER_LOSS, _BY_STAGES),
    Limit(
        CHECKPOINTING, NOT_TORCH, "framework `{training.framework}` keeps all activations", _TORCH
    ),
    Limit(
        COMPILING, NOT_TORCH, "framework `{training.framework}` compiles nothing by itself", _TORCH
    ),
    Limit(
        COMPILING,
        DIVIDED,
        "the matrices of a layer are divided, and so is what would be compiled",
        "Leave it out, or leave training.model_parallel at 1",
    ),
    Limit(COMPILING, MEGATRON, "engine megatron has layers of its own", _LEAVE_OUT),
    Limit(
        MICRO_BATCHES, NOT_TORCH, "framework `{training.framework}` embeds whole granules", _TORCH
    ),
    Limit(
        MICRO_BATCHES, STAGES, "the micro-batches of a pipeline are whole granules", _WHOLE_GRANULES
    ),
    Limit(
        MICRO_BATCHES,
        MEGATRON,
        "the micro-batches of engine megatron are whole granules",
        _WHOLE_GRANULES,
    ),
    Limit(EMA, NOT_TOGETHER, _MODE, _TOGETHER),
    Limit(
        EMA,
        SHARDED,
        "training.sharding `{training.sharding}` keeps no average",
        "Leave it out, or set training.sharding to none",
    ),
    Limit(EMA, ELEPHAS, _ROUNDS, "Leave it out, or choose another engine"),
    Limit(EMA, MEGATRON, "engine megatron's optimiser keeps no average", _LEAVE_OUT),
    Limit(EMA, MESH, "engine mesh keeps no moving average of the weights", _LEAVE_OUT),
    Limit(PATIENCE, NOT_TOGETHER, _MODE, _TOGETHER),
    Limit(
        PATIENCE,
        FED,
        "training.feed `spark` sends all granules to the workers",
        "Leave it out, or set training.feed to lanes",
    ),
    Limit(PATIENCE, ELEPHAS, _ROUNDS, "Leave it out, or choose another engine"),
    Limit(MINUTES, ALONE, _MEET, _BY_STEPS),
    Limit(
        MINUTES,
        DLLIB,
        "dllib needs to know the checkpoints before each part of the run",
        _BY_STEPS,
    ),
    Limit(MEMBERS, ALONE, _WHOLE, _SYNC),
    Limit(LAYERS, ALONE, _WHOLE, _SYNC),
    Limit(OFFLOAD, ANY_STAGES, "the moments of stages stay in memory", "Leave it at none"),
    Limit(
        OFFLOAD,
        UNSHARDED,
        "training.sharding `none` keeps each worker's state in memory",
        "Leave it at none, or set training.sharding to parameters",
    ),
    Limit(COMPRESSION, ORCA, "Orca sends PyTorch's gradients uncompressed", "Leave it at none"),
    Limit(
        COMPRESSION,
        TORCH_PARTS,
        "workers with parts of an encoder send them uncompressed",
        "Leave it at none",
    ),
    Limit(
        FP16_GRADIENTS,
        TORCH,
        "engine torch compresses gradients to bf16 only",
        "Set it to bf16, or training.engine to horovod",
    ),
    Limit(
        BF16_GRADIENTS,
        HOROVOD,
        "Horovod compresses gradients to fp16 only",
        "Set it to fp16, or training.engine to torch",
    ),
    Limit(BF16_GRADIENTS, DLLIB, "dllib compresses gradients to fp16 only", "Set it to fp16"),
)


def check_limits(asked: Asked, limits: Sequence[Limit] = LIMITS, engine: str | None = None) -> None:
    """Refuse unsupported features of a training.

    Without an `engine`, only the limits of no engine are checked.

    Raises:
        InputError: For the first such feature.
    """
    engines = (None,) if engine is None else (engine, ANY_ENGINE)
    for feature, scope, problem, remedy, key in limits:
        if scope.engine in engines and scope.holds(asked.training) and feature.is_asked(asked):
            raise InputError(key or feature.key, problem.format(training=asked.training), remedy)
