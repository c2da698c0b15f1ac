"""The setting that a user may have meant who wrote one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

FROM_ELSEWHERE: Mapping[str, str] = {
    # Transformers, Sentence Transformers, Accelerate, Keras and Lightning.
    "lr": "training.learning_rate",
    "base_lr": "training.learning_rate",
    "max_lr": "training.learning_rate",
    "learning_rate_init": "training.learning_rate",
    "micro_batch_size": "lanes.granule",
    "mini_batch_size": "lanes.granule",
    "gradient_accumulation_steps": "training.granules_per_step",
    "accumulate_grad_batches": "training.granules_per_step",
    "num_train_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "n_epochs": "training.epochs",
    "max_epochs": "training.epochs",
    "num_train_steps": "training.max_steps",
    "total_steps": "training.max_steps",
    "warmup_ratio": "training.warmup",
    "warmup_proportion": "training.warmup",
    "lr_scheduler": "training.schedule",
    "lr_scheduler_type": "training.schedule",
    "scheduler": "training.schedule",
    "max_grad_norm": "training.clip_norm",
    "gradient_clip_val": "training.clip_norm",
    "clip_grad_norm": "training.clip_norm",
    "mixed_precision": "training.precision",
    "gradient_checkpointing": "training.activation_checkpointing",
    "save_steps": "training.checkpoint_every",
    "save_total_limit": "training.keep_checkpoints",
    "logging_steps": "training.log_every",
    "resume_from_checkpoint": "training.resume",
    "num_workers": "training.workers",
    "world_size": "training.workers",
    "nproc_per_node": "training.workers",
    "num_processes": "training.workers",
    "strategy": "training.engine",
    "random_state": "training.seed",
    "eval_steps": "evaluation.every_checkpoints",
    "output_dir": "run.folder",
    "output_path": "run.folder",
    "output_folder": "run.folder",
    "save_dir": "run.folder",
    "run_name": "run.folder",
    "overwrite_output_dir": "run.overwrite",
    "model": "encoder.start",
    "model_name": "encoder.start",
    "model_name_or_path": "encoder.start",
    "base_model": "encoder.start",
    "pretrained_model_name_or_path": "encoder.start",
    "num_hidden_layers": "encoder.layers",
    "num_layers": "encoder.layers",
    "hidden_size": "encoder.hidden",
    "num_attention_heads": "encoder.heads",
    "intermediate_size": "encoder.intermediate",
    "pooling_mode": "encoder.pooling",
    "normalize": "encoder.normalise",
    "normalize_embeddings": "encoder.normalise",
    "max_seq_length": "tokens.max_length",
    "max_sequence_length": "tokens.max_length",
    "max_seq_len": "tokens.max_length",
    "tokenizer": "tokens.vocabulary",
    "tokenizer_name": "tokens.vocabulary",
    "vocab_size": "tokens.vocabulary_size",
    "do_lower_case": "tokens.lowercase",
    "loss": "objective.name",
    "loss_function": "objective.name",
    "train_file": "corpus.inputs",
    "train_data": "corpus.inputs",
    "data": "corpus.inputs",
    "data_path": "corpus.inputs",
    "dataset": "corpus.inputs",
    "dataset_name": "corpus.inputs",
    "files": "corpus.inputs",
    "path": "corpus.inputs",
    "columns": "corpus.pair_columns",
    "validation_split": "corpus.evaluation_share",
    "test_size": "corpus.evaluation_share",
    "report_to": "tracking.trackers",
    "master": "spark.master",
}
"""What other tools call a setting."""

_BATCH = (
    "an update takes training.granules_per_step granules of lanes.granule examples each: "
    "set one of these"
)
_PRECISION = "set training.precision=bf16"
IN_WORDS: Mapping[str, str] = {
    "batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "global_batch_size": _BATCH,
    "per_device_train_batch_size": _BATCH,
    "per_device_batch_size": _BATCH,
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "warmup_steps": "set training.warmup to a share of the steps",
    "num_warmup_steps": "set training.warmup to a share of the steps",
    "scale": "set objective.temperature to its inverse",
}
"""What other tools have as a setting, and is here said in another way."""

_CLOSE, _CLOSE_ELSEWHERE = 0.6, 0.8


def remedy(key: str, known: Iterable[str]) -> str:
    """What to propose for a setting that does not exist.

    Args:
        key: As it was written, with its section or without.
        known: All settings, with their sections.
    """
    section, _, name = key.rpartition(".")
    name = name.lower().replace("-", "_")
    by_name: dict[str, list[str]] = {}
    for setting in known:
        by_name.setdefault(setting.rpartition(".")[2], []).append(setting)
    own = [name for name, settings in by_name.items() if f"{section}.{name}" in settings]
    # A typing error first, then another tool's name, then what is somewhat similar.
    if close := difflib.get_close_matches(name, own, 1, _CLOSE_ELSEWHERE):
        meant = f"{section}.{close[0]}"
    elif name in IN_WORDS:
        return IN_WORDS[name]
    elif name in FROM_ELSEWHERE:
        meant = FROM_ELSEWHERE[name]
    elif close := difflib.get_close_matches(name, own, 1, _CLOSE):
        meant = f"{section}.{close[0]}"
    elif close := difflib.get_close_matches(name, by_name, 1, _CLOSE_ELSEWHERE):
        meant = " or ".join(by_name[close[0]])
    else:
        return "see docs/settings.md for all of them"
    return f"did you mean {meant}?"
