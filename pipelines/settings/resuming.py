"""The lists of settings that may, or may not, change in a resumed run.

Every setting that decides a training is in one of them; `objective` is in as a whole, since a loss
has keys of its own. The corpus is not in them: lanes know by their digest whether they are the
same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipelines.settings import Config, ObjectiveSettings, Settings
from pipelines.settings.base import RENAMED, Choice

SECTIONS = ("tokens", "lanes", "encoder", "objective", "training")
"""Sections whose settings are in the lists."""
FIXED = (
    "tokens.vocabulary",
    "tokens.model",
    "tokens.vocabulary_size",
    "tokens.lowercase",
    "tokens.max_length",
    "lanes.count",
    "lanes.granule",
    "lanes.bucket",
    "lanes.bucket_growth",
    "lanes.seed",
    "encoder.start",
    "encoder.kind",
    "encoder.layers",
    "encoder.keep_layers",
    "encoder.hidden",
    "encoder.heads",
    "encoder.intermediate",
    "encoder.pooling",
    "encoder.output_width",
    "encoder.normalise",
    "encoder.max_length",
    "encoder.prompts",
    "encoder.default_prompt_name",
    "encoder.freeze.embeddings",
    "encoder.freeze.layers",
    "encoder.lora.rank",
    "encoder.lora.alpha",
    "encoder.lora.targets",
    "objective.*",
    "training.granules_per_step",
    "training.learning_rate",
    "training.schedule",
    "training.warmup",
    "training.weight_decay",
    "training.clip_norm",
    "training.dropout",
    "training.seed",
    "training.ema",
)
"""They decide what is learnt: another value is another experiment, which cannot be resumed."""
NEW: Mapping[str, Any] = {"encoder.output_width": None}
"""Fixed settings that records of earlier releases lack, and the value of those runs."""
CHOICES = (
    "training.keep_best",
    "training.patience",
    "training.average_checkpoints",
    "training.start_share",
    "encoder.lsa.dimensions",
    "encoder.lsa.weight",
)
"""They decide what the model is made of: which of the states, and what stands beside it."""
RECORDED = (
    "training.engine",
    "training.mode",
    "training.framework",
    "training.feed",
    "training.workers",
    "training.model_parallel",
    "training.pipeline_parallel",
    "training.threads",
    "training.max_staleness",
    "training.parameter_servers",
    "training.transport",
    "training.sharding",
    "training.offload",
    "training.compression",
    "training.round_steps",
    "training.epochs",
    "training.max_steps",
    "training.precision",
    "training.activation_checkpointing",
    "training.tokens_per_forward",
    "training.compile",
    *CHOICES,
)
"""How the same updates are made, and how many: they may change, and ``history.json`` records it."""
FREE = (
    "encoder.lora.export",
    "training.log_every",
    "training.checkpoint_every",
    "training.checkpoint_minutes",
    "training.keep_checkpoints",
    "training.restarts",
    "training.resume",
    "training.start_seconds",
    "training.stall_seconds",
)
"""They have no effect on updates."""

_OF_SOURCE = ("weight", "objective")
"""How a source is trained on; its other keys decide what the lanes hold."""


def fixed_settings(config: Config) -> Mapping[str, Any]:
    """Return the fixed settings of a run, by key, as JSON values."""
    return {**_values(config, FIXED), **_of_sources(config)}


def _of_sources(config: Config) -> dict[str, Any]:
    """Return the weight and objective of each source."""
    sources = [source.model_dump(mode="json") for source in config.corpus.sources]
    return {
        f"corpus.sources.{source['name']}.{key}": source[key]
        for source in sources
        for key in _OF_SOURCE
    }


def recorded_settings(config: Config) -> Mapping[str, Any]:
    """Return the recorded settings of a run, by key, as JSON values."""
    return _values(config, RECORDED)


def recorded_value(known: Mapping[str, Any], key: str, default: Any) -> Any:
    """Return a run's recorded value of a setting, in current names.

    `known` has the names of the run's release; `key` is the current name. `default` is for a
    setting that the record lacks, unless it is :data:`NEW`.
    """
    default = NEW.get(key, default)
    former = next((before for before, now in RENAMED.items() if now == key), key)
    value = known.get(key, known.get(former, default))
    section, _, name = key.partition(".")
    model = Config.model_fields[section].annotation
    field = getattr(model, "model_fields", {}).get(name)
    for mark in () if field is None else field.metadata:
        if isinstance(mark, Choice):
            return mark.registry.renamed.get(value, value)
    return value


def _values(config: Config, keys: tuple[str, ...]) -> Mapping[str, Any]:
    sections = {name: getattr(config, name).model_dump(mode="json") for name in SECTIONS}
    found: dict[str, Any] = {}
    for key in keys:
        section, _, name = key.partition(".")
        names = sections[section] if name == "*" else [name]
        found |= {f"{section}.{part}": _value(sections[section], part) for part in names}
    return found


def _value(values: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        values = values[part]
    return values


def differing_settings(config: Config, sections: Collection[str] | None = None) -> dict[str, Any]:
    """Return the settings with other values than their defaults, by key, as JSON values.

    The keys of a loss have the defaults of that loss. `sections` limits the comparison.
    """
    found: dict[str, Any] = {}
    for name, section in config:
        if (sections is None or name in sections) and isinstance(section, Settings):
            default = type(section)()
            found |= _differing(f"{name}.", section.model_dump(mode="json"), default)
    chosen, usual = config.objective.name, ObjectiveSettings().name
    if "objective" in (sections or Config.model_fields) and chosen != usual:
        found["objective.name"] = chosen
    return found


def _differing(
    prefix: str, values: Mapping[str, Any], default: Settings
) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of a section, or of a part, without the defaults."""
    usual = default.model_dump(mode="json")
    for key, value in values.items():
        part = getattr(default, key, None)
        # A mapping with the user's names is one value.
        if isinstance(part, Settings):
            yield from _differing(f"{prefix}{key}.", value, part)
        elif key not in usual or value != usual[key]:
            yield f"{prefix}{key}", value
