"""The table of what cannot be trained how; refusals and docs/reference/engines.md follow from it.

A limit names a feature, the trainings that lack it, and why. Limits of frameworks, modes and
layouts are checked when settings are read, those of an engine before it starts.
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
    """The settings that decide which features a training needs; `objectives` has one per source."""

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
    """A cell of the table: a feature that the trainings of a scope cannot have.

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
    return any(LOSSES.load(one.name).reconstruction is not None for one in asked.objectives)


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
    lambda asked: not all(getattr(one, "is_plain", True) for one in asked.objectives),
)
SOURCES = Feature("corpus.sources", "several sources", lambda asked: bool(asked.corpus.sources))
MICRO_BATCHES = Feature(
    "training.tokens_per_micro_batch",
    "micro-batches",
    lambda asked: asked.training.tokens_per_micro_batch is not None,
)
CHECKPOINTING = Feature(
    "training.activation_checkpointing",
    "activation checkpointing",
    lambda asked: asked.training.activation_checkpointing,
)
COMPRESSION = Feature(
    "training.compression", "compression", lambda asked: asked.training.compression != "none"
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
DEEPSPEED_STAGES = Scope("`deepspeed` with stages", STAGES.holds, "deepspeed")
ELEPHAS = Scope("`elephas` sync", lambda training: training.mode == "sync", "elephas")
ELEPHAS_WORKERS = Scope(
    "`elephas` sync with several workers",
    lambda training: training.mode == "sync" and training.workers > 1,
    "elephas",
)
MEGATRON = Scope("`megatron`", engine="megatron")
MESH = Scope("`mesh`", engine="mesh")

_LEAVE_OUT = "leave it out, or training.engine: torch"
_LEAVE_0 = "set it to 0, or training.engine: torch"
_GRANULE = "set it to granule, or training.engine: torch"
_TORCH = "leave it out, or training.framework: torch"
_SPLIT = "leave it out, or training.engine: torch with training.sharding: none"
_TOGETHER = "leave it out, or training.mode: sync with another framework than bigdl"
_SYNC = "leave it 1, or training.mode: sync"
_FRAMEWORKS = "one of tensorflow, torch"
_WHOLE_GRANULES = "leave it out, and lower lanes.granule"
_BY_STEPS = "leave it out, and set training.checkpoint_every"
_MODE = "mode `{training.mode}` of framework `{training.framework}` has no such thing"
_ALL_TRAINED = "with training.sharding `{training.sharding}` all weights are trained"
_WHOLE = "in the mode `{training.mode}` each worker holds the whole encoder"
_MEET = "in the mode `{training.mode}` the workers meet at checkpoints of known steps alone"
_ROUNDS = "the workers of engine elephas have states of their own between two averages"
_APART = "the workers of engine elephas do not meet inside a step, so it cannot be `step`"
_UNDIVIDED = "LoRA's small matrices are not divided"
_WRITTEN_OUT = "the loss reconstructs texts with weights that are not divided"
_NO_LORA = "leave it 1, or encoder.lora.rank: 0"
_OTHER_LOSS = "leave it 1, or take another objective.name"
_BY_MEMBERS, _BY_STAGES = "training.model_parallel", "training.pipeline_parallel"
_MEGATRON_ALL = "engine megatron trains all of an encoder"

LIMITS: tuple[Limit, ...] = (
    Limit(SOURCES, BIGDL, "bigdl trains on one source alone", _FRAMEWORKS, "training.framework"),
    Limit(
        WIDTHS,
        BIGDL,
        "bigdl trains embeddings of the whole width only",
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
    Limit(FREEZE, MESH, "the mesh trains all weights", _LEAVE_OUT),
    Limit(
        FREEZE,
        ANY_STAGES,
        "a stage of frozen layers has no gradient to pass on",
        "leave it 1, or leave encoder.freeze out",
        _BY_STAGES,
    ),
    Limit(LORA, BIGDL, "`bigdl` trains all weights", _TORCH),
    Limit(LORA, SHARDED, _ALL_TRAINED, _SPLIT),
    Limit(LORA, MEGATRON, _MEGATRON_ALL, _LEAVE_0),
    Limit(LORA, MESH, "the mesh has no dimensions for matrices of LoRA", _LEAVE_0),
    Limit(LORA, DIVIDED, _UNDIVIDED, _NO_LORA, _BY_MEMBERS),
    Limit(LORA, STAGES_ALONE, _UNDIVIDED, _NO_LORA, _BY_STAGES),
    Limit(BF16, DLLIB, "dllib computes in fp32", "set fp32"),
    Limit(
        BF16, MESH, "Mesh TensorFlow computes in fp32 here", "set fp32, or training.engine: torch"
    ),
    Limit(
        DROPOUT,
        DLLIB,
        "framework bigdl has none, and unset it is that of the start",
        "set it to 0",
    ),
    Limit(STEP_NEGATIVES, DLLIB, "framework bigdl sees one granule at a time", "set it to granule"),
    Limit(STEP_NEGATIVES, MESH, "the mesh compares the texts of one granule", _GRANULE),
    Limit(
        STEP_NEGATIVES,
        DEEPSPEED_STAGES,
        "DeepSpeed's pipelines see one granule at a time",
        _GRANULE,
    ),
    Limit(STEP_NEGATIVES, ELEPHAS_WORKERS, _APART, "set it to granule, or training.mode to async"),
    Limit(
        OWN_WEIGHTS,
        MEGATRON,
        "engine megatron has no decoder, which the loss needs",
        "another objective.name, or training.engine: torch",
    ),
    Limit(OWN_WEIGHTS, DIVIDED, _WRITTEN_OUT, _OTHER_LOSS, _BY_MEMBERS),
    Limit(OWN_WEIGHTS, STAGES_ALONE, _WRITTEN_OUT, _OTHER_LOSS, _BY_STAGES),
    Limit(CHECKPOINTING, NOT_TORCH, "`{training.framework}` keeps all activations", _TORCH),
    Limit(MICRO_BATCHES, NOT_TORCH, "`{training.framework}` embeds granules as they are", _TORCH),
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
        "with training.sharding `{training.sharding}` there is none",
        "leave it out, or training.sharding: none",
    ),
    Limit(EMA, ELEPHAS, _ROUNDS, "leave it out, or take another engine"),
    Limit(EMA, MEGATRON, "engine megatron's optimiser keeps no average", _LEAVE_OUT),
    Limit(EMA, MESH, "the mesh keeps no moving averages of the weights", _LEAVE_OUT),
    Limit(PATIENCE, NOT_TOGETHER, _MODE, _TOGETHER),
    Limit(
        PATIENCE,
        FED,
        "with training.feed `spark` all granules are sent to the workers",
        "leave it out, or training.feed: lanes",
    ),
    Limit(PATIENCE, ELEPHAS, _ROUNDS, "leave it out, or take another engine"),
    Limit(MINUTES, ALONE, _MEET, _BY_STEPS),
    Limit(
        MINUTES,
        DLLIB,
        "dllib is told before a part of the run which checkpoints it is to write",
        _BY_STEPS,
    ),
    Limit(MEMBERS, ALONE, _WHOLE, _SYNC),
    Limit(LAYERS, ALONE, _WHOLE, _SYNC),
    Limit(OFFLOAD, ANY_STAGES, "the moments of stages stay in memory", "leave it none"),
    Limit(
        OFFLOAD,
        UNSHARDED,
        "with training.sharding `none` each worker keeps its state in its memory",
        "leave it none, or training.sharding: parameters",
    ),
    Limit(COMPRESSION, ORCA, "PyTorch's gradients travel as they are", "leave it none"),
)


def check_limits(asked: Asked, limits: Sequence[Limit] = LIMITS, engine: str | None = None) -> None:
    """Refuse features that a training cannot have.

    Without an `engine`, only the limits of no engine are checked.

    Raises:
        InputError: For the first such feature.
    """
    engines = (None,) if engine is None else (engine, ANY_ENGINE)
    for feature, scope, problem, remedy, key in limits:
        if scope.engine in engines and scope.holds(asked.training) and feature.is_asked(asked):
            raise InputError(key or feature.key, problem.format(training=asked.training), remedy)
