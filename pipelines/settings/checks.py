"""Checks across sections of the settings; `Settings.check` compares settings of one section.

The first argument is the section whose keys the errors name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipelines.catalog import ARCHITECTURES, LOSSES
from pipelines.errors import InputError
from pipelines.settings.corpus import SourceSettings
from pipelines.settings.encoder import EncoderSettings, LoraSettings
from pipelines.settings.evaluation import EvaluationSettings
from pipelines.settings.objective import ObjectiveSettings
from pipelines.settings.preparing import START, TeacherSettings, TokenSettings
from pipelines.settings.running import RunSettings
from pipelines.settings.training import TrainingSettings

_NOT_OF_START = "the start lacks the layer of encoder.output_width"


def check_tokens(tokens: TokenSettings, encoder: EncoderSettings) -> None:
    """Refuse texts longer than the encoder reads."""
    longest = encoder.max_length
    if isinstance(longest, int) and longest < (tokens.max_length or 0):
        raise InputError(
            "tokens.max_length",
            f"{tokens.max_length} is more than encoder.max_length",
            f"Set it to at most {longest}",
        )


def check_teacher(teacher: TeacherSettings, encoder: EncoderSettings) -> None:
    """Refuse two teachers, a random start as teacher, and a width without a teacher."""
    if teacher.model is not None and teacher.vectors:
        raise InputError("teacher.vectors", "teacher.model is set too", "Leave one of them out")
    if teacher.model == START and encoder.start == "random":
        raise InputError("teacher.model", "a random start teaches nothing", "Name a model's folder")
    if teacher.dimensions is not None and teacher.model is None:
        raise InputError(
            "teacher.dimensions", "it needs teacher.model", "Set that, or leave it out"
        )


def check_encoder(encoder: EncoderSettings) -> None:
    """Refuse impossible shapes, and settings without effect for the start or LoRA rank."""
    if not encoder.lora.rank:
        for key, field in LoraSettings.model_fields.items():
            if getattr(encoder.lora, key) != field.default:
                raise InputError(
                    "encoder.lora.rank",
                    f"it is 0, and encoder.lora.{key} is set",
                    "Set it to 16, for example, or leave the section out",
                )
    # The packaged start is a BERT.
    if encoder.start == "default" and encoder.kind != EncoderSettings.model_fields["kind"].default:
        raise InputError(
            "encoder.kind",
            f"encoder.start `default` is no `{encoder.kind}`",
            "Set encoder.start to random",
        )
    if encoder.start == "random" and encoder.keep_layers is not None:
        raise InputError(
            "encoder.keep_layers", "a random start has no layers to keep", "Set encoder.layers"
        )
    ARCHITECTURES.load(encoder.kind).check_settings(encoder)


def check_dimensions(objective: ObjectiveSettings) -> None:
    """Refuse impossible dimensions and weights."""
    is_repeated = len(set(objective.dimensions)) < len(objective.dimensions)
    if is_repeated or any(dimension < 1 for dimension in objective.dimensions):
        raise InputError(
            "objective.dimensions",
            f"it is {', '.join(map(str, objective.dimensions))}",
            "Name whole numbers above 0, each once",
        )
    weights = objective.dimension_weights
    if weights and len(weights) != len(objective.dimensions):
        raise InputError(
            "objective.dimension_weights",
            f"it has {len(weights)} weights for {len(objective.dimensions)} dimensions",
            "Give one for each, or none",
        )
    if any(weight <= 0 for weight in weights):
        raise InputError(
            "objective.dimension_weights",
            f"it is {', '.join(map(str, weights))}",
            "Give numbers above 0",
        )


def check_training(
    training: TrainingSettings, encoder: EncoderSettings, evaluation: EvaluationSettings
) -> None:
    """Refuse contradictory choices of the model, and an uneven share of granules."""
    averages = {
        "training.ema": training.ema is not None,
        "training.average_checkpoints": training.average_checkpoints > 1,
    }
    if all(averages.values()):
        raise InputError(
            "training.average_checkpoints", "training.ema averages already", "Leave one out"
        )
    if training.keep_best and averages["training.average_checkpoints"]:
        raise InputError(
            "training.average_checkpoints",
            "the model cannot be both this mean and the best checkpoint",
            "Leave it or training.keep_best out",
        )
    lora = encoder.lora
    is_adapter = lora.rank > 0 and lora.export == "adapter"
    if training.start_share:
        _check_share(encoder, is_adapter)
    if is_adapter and averages["training.average_checkpoints"]:
        raise InputError(
            "training.average_checkpoints",
            "a mean of LoRA's products is no adapter of the same rank",
            "Leave it out, or set encoder.lora.export to merged",
        )
    if training.keep_best and not evaluation.every_checkpoints:
        raise InputError(
            "training.keep_best",
            "training measures no checkpoint",
            "Set evaluation.every_checkpoints to 1",
        )
    if training.patience and not training.keep_best:
        raise InputError(
            "training.patience", "no metric decides what a gain is", "Set training.keep_best"
        )
    check_sharing(training)


def _check_share(encoder: EncoderSettings, is_adapter: bool) -> None:
    """Refuse a share of random weights, or one outside the export."""
    if encoder.start == "random":
        raise InputError(
            "training.start_share", "random weights hold nothing to keep", "Leave it out"
        )
    if encoder.output_width is not None:
        raise InputError(
            "training.start_share", f"{_NOT_OF_START}, which a share would spoil", "Set it to 0"
        )
    if is_adapter:
        raise InputError(
            "training.start_share",
            "the adapter holds trained weights only",
            "Leave it out, or set encoder.lora.export to merged",
        )


def check_kept_start(run: RunSettings, encoder: EncoderSettings) -> None:
    """Refuse a start that lacks a layer of the model in its place."""
    if run.keep_start and encoder.output_width is not None:
        problem = f"{_NOT_OF_START}, so it cannot be the model"
        raise InputError("run.keep_start", problem, "Set it to false")


def check_sharing(training: TrainingSettings) -> None:
    """Refuse steps with unequal numbers of granules for workers, or replicas."""
    placement = training.placement
    replicas = placement.replicas
    if training.mode == "sync" and training.granules_per_step % replicas:
        raise InputError(
            "training.granules_per_step",
            f"{replicas} {placement.sharing} cannot share {training.granules_per_step} granules",
            f"Set it to a multiple of {replicas}",
        )


def check_divided(training: TrainingSettings) -> None:
    """Refuse incomplete replicas of workers, for an engine with divided encoders."""
    placement = training.placement
    if placement.is_divided and training.workers % placement.per_replica:
        raise InputError(
            "training.workers",
            f"{training.workers} workers make no whole replicas of {placement.members} x "
            f"{placement.stages} (training.model_parallel x training.pipeline_parallel)",
            f"Use a multiple of {placement.per_replica}",
        )


def check_sources(
    sources: Sequence[SourceSettings],
    objectives: Sequence[ObjectiveSettings],
    teacher: TeacherSettings,
) -> None:
    """Refuse ambiguous names, incompatible objectives, and a teacher of several sources.

    `objectives` holds one for each source.
    """
    for name in (source.name for source in sources):
        if re.fullmatch(r"[\w-]{1,64}", name, re.ASCII) is None:
            raise InputError(
                "corpus.sources.name",
                f"`{name}` is no name of a source",
                "Use at most 64 letters, digits, `_` and `-`",
            )
        if sum(source.name == name for source in sources) > 1:
            raise InputError(
                "corpus.sources.name", f"two sources are called {name}", "Give each its own name"
            )
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        unweighted = next(source.name for source in sources if source.weight is None)
        lacking = f"source {unweighted} has none"
        raise InputError("corpus.sources.weight", lacking, "Give all of them one, or none")
    if teacher.is_asked:
        raise InputError(
            "corpus.sources",
            "a corpus with sources has no teacher",
            "Leave one of them out",
        )
    _check_own_weights(objectives)


def _check_own_weights(objectives: Sequence[ObjectiveSettings]) -> None:
    """Refuse an objective with its own weights beside another: not every step would train them."""
    names = [objective.name for objective in objectives]
    with_weights = [name for name in names if LOSSES.load(name).token_loss]
    if with_weights and len({*objectives}) > 1:
        raise InputError(
            "corpus.sources.objective",
            f"`{with_weights[0]}` has weights of its own, which every step must train",
            "Use the same objective for all sources",
        )


def check_key_column(source: SourceSettings, key_column: str | None) -> None:
    """Refuse a source with another key column than `corpus`: `delete` would miss its rows."""
    if source.key_column not in (None, key_column):
        raise InputError(
            "corpus.sources.key_column",
            f"`{source.key_column}` is not corpus.key_column, which `delete` goes by",
            "Name the same column, or set it to null for this source",
        )
