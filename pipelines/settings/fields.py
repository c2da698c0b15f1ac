"""All settings, section by section: for the page of settings, and for suggestions in errors."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, pairwise
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeGuard, Union, get_args, get_origin

import yaml
from pydantic import BaseModel

from pipelines.settings import Config, CorpusSettings, ObjectiveSettings, Settings
from pipelines.settings.corpus import SourceForm, SourceSettings
from pipelines.settings.objective import settings_by_loss


class SettingField(NamedTuple):
    """A setting for people: its key with the section, its kind in words, its default as YAML."""

    key: str
    kind: str
    default: str
    description: str


def fields() -> Iterator[SettingField]:
    """Yield every setting; a key with several forms in losses, once for each."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if not _is_part(model):
            # The schema of the whole class would take longer than those of all sections.
            extra = section_field.json_schema_extra
            kind = _kind_in_words(extra if isinstance(extra, dict) else {})
            yield SettingField(section, kind, "null", description_of(Config, section))
            continue
        yield from _fields_of(section, model)
        if model.model_config.get("extra") == "allow":
            yield SettingField(f"{section}.*", "text", "", model.__doc__ or "")
        if model is ObjectiveSettings:
            yield from _fields_of_losses(section)
        if model is CorpusSettings:
            yield from _fields_of_sources()


def keys() -> Iterator[str]:
    """Yield the key of every setting, without what :func:`fields` reads from the source."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if not _is_part(model):
            yield section
            continue
        yield from _keys_of(section, model)
        if model.model_config.get("extra") == "allow":
            yield section
        if model is ObjectiveSettings:
            for model_of_loss in settings_by_loss().values():
                yield from _keys_of(section, model_of_loss)
        if model is CorpusSettings:
            yield from _keys_of("corpus.sources", SourceSettings, SourceForm.model_fields)


def _keys_of(section: str, model: type[Settings], without: Container[str] = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{section}.{name}"
        if _is_part(field.annotation):
            yield from _keys_of(key, field.annotation)
        elif name not in without:
            yield key


def kinds(section: str, name: str) -> set[Any]:
    """Return the generic types of a setting, such as `tuple` and `Mapping`.

    `name` has a dot for a setting in a part of the section, as `lora.targets`.
    """
    return {get_origin(annotation) for annotation in _annotations(section, name)} - {None}


def is_free(key: str) -> bool:
    """Tell whether a setting is a mapping of any values, taken as a whole."""
    section, _, name = key.partition(".")
    found = _annotations(section, name)
    return any(get_origin(one) is Mapping and Any in get_args(one) for one in found)


def _annotations(section: str, name: str) -> Iterator[Any]:
    model = _section(section)
    found: list[Any] = [] if model is None else [model]
    if model is ObjectiveSettings:
        # Overrides are parsed before the loss is known.
        found += settings_by_loss().values()
    for part in name.split("."):
        by_model = [part_model.model_fields for part_model in found if _is_part(part_model)]
        found = [fields[part].annotation for fields in by_model if part in fields]
    return chain.from_iterable(map(_options, found))


def is_section(name: str) -> bool:
    """Tell whether a name is a section; the setting `recipe` is none."""
    return _section(name) is not None


def has_parts(section: str, name: str) -> bool:
    """Tell whether a setting has settings of its own, as `encoder.lora`."""
    model = _section(section)
    known = {} if model is None else model.model_fields
    return name in known and _is_part(known[name].annotation)


def _section(name: str) -> type[Settings] | None:
    known = Config.model_fields.get(name)
    return known.annotation if known is not None and _is_part(known.annotation) else None


def _options(annotation: Any) -> Iterator[Any]:
    """Yield the types of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        yield from chain.from_iterable(map(_options, get_args(annotation)))
    else:
        yield annotation


def _fields_of_losses(section: str) -> Iterator[SettingField]:
    """Yield the losses' own keys, with the names of their losses."""
    losses: dict[SettingField, list[str]] = {}
    for name, model in settings_by_loss().items():
        for field in _fields_of(section, model):
            if field.key.rpartition(".")[2] not in ObjectiveSettings.model_fields:
                losses.setdefault(field, []).append(f"`{name}`")
    for field, names in losses.items():
        yield field._replace(description=f"{', '.join(names)}: {field.description}")


def _fields_of_sources() -> Iterator[SettingField]:
    """Yield the keys of a source beside those of the section."""
    for field in _fields_of("corpus.sources", SourceSettings):
        if field.key.rpartition(".")[2] not in SourceForm.model_fields:
            yield field


def _fields_of(section: str, model: type[Settings]) -> Iterator[SettingField]:
    schema = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        if _is_part(field.annotation):
            yield from _fields_of(f"{section}.{name}", field.annotation)
            continue
        value = None if field.is_required() else field.get_default(call_default_factory=True)
        default = yaml.safe_dump(_plain(value), default_flow_style=True, allow_unicode=True)
        yield SettingField(
            f"{section}.{name}",
            _kind_in_words(schema[name]),
            "" if field.is_required() else default.removesuffix("...\n").strip(),
            description_of(model, name),
        )


def description_of(model: type[BaseModel], name: str) -> str:
    """Return a field's description: that of its `Field`, or the string below it in the source."""
    if description := model.model_fields[name].description:
        return description
    by_class = map(_strings_below_fields, model.mro())
    return next((strings[name] for strings in by_class if name in strings), "")


@cache
def _strings_below_fields(model: type) -> Mapping[str, str]:
    """Return the strings below the fields of a class, without their line breaks."""
    if model is BaseModel or not issubclass(model, BaseModel):
        return {}
    tree = _classes_of(model.__module__).get(model.__name__)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(getattr(tree, "body", ()))
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def _classes_of(module: str) -> Mapping[str, ast.ClassDef]:
    """Parse the classes of a module at once: `inspect` would parse it again for each of them."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:
        return {}  # An archive may leave sources out.
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def _is_part(annotation: Any) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _kind_in_words(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "mapping"
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_kind_in_words(option) for option in schema["anyOf"])
    names = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true | false",
        "array": "list",
        "object": "mapping",
        "null": "nothing",
    }
    return names[schema["type"]]


_ELSEWHERE = {
    # Names in Transformers, Sentence Transformers, Accelerate, Keras and Lightning.
    "training.learning_rate": "lr base_lr max_lr learning_rate_init",
    "lanes.granule": "micro_batch_size mini_batch_size",
    "training.granules_per_step": "gradient_accumulation_steps accumulate_grad_batches",
    "training.epochs": "num_train_epochs num_epochs n_epochs max_epochs",
    "training.max_steps": "num_train_steps total_steps",
    "training.warmup": "warmup_ratio warmup_proportion",
    "training.schedule": "lr_scheduler lr_scheduler_type scheduler",
    "training.clip_norm": "max_grad_norm gradient_clip_val clip_grad_norm",
    "training.precision": "mixed_precision",
    "training.activation_checkpointing": "gradient_checkpointing",
    "training.compile": "torch_compile",
    "training.checkpoint_every": "save_steps",
    "training.keep_checkpoints": "save_total_limit",
    "training.log_every": "logging_steps",
    "training.resume": "resume_from_checkpoint",
    "training.workers": "num_workers world_size nproc_per_node num_processes",
    "training.engine": "strategy",
    "training.seed": "random_state",
    "evaluation.every_checkpoints": "eval_steps",
    "run.folder": "output_dir output_path output_folder save_dir run_name",
    "run.overwrite": "overwrite_output_dir",
    "encoder.start": "model model_name model_name_or_path base_model pretrained_model_name_or_path",
    "encoder.layers": "num_hidden_layers num_layers",
    "encoder.hidden": "hidden_size",
    "encoder.heads": "num_attention_heads",
    "encoder.intermediate": "intermediate_size",
    "encoder.pooling": "pooling_mode",
    "encoder.normalise": "normalize normalize_embeddings",
    "tokens.max_length": "max_seq_length max_sequence_length max_seq_len",
    "tokens.vocabulary": "tokenizer tokenizer_name",
    "tokens.vocabulary_size": "vocab_size",
    "tokens.lowercase": "do_lower_case",
    "objective.name": "loss loss_function",
    "corpus.inputs": "train_file train_data data data_path dataset dataset_name files path",
    "corpus.pair_columns": "columns",
    "corpus.evaluation_share": "validation_split test_size",
    "tracking.trackers": "report_to",
    "spark.master": "master",
}
FROM_ELSEWHERE: Mapping[str, str] = {
    name: setting for setting, names in _ELSEWHERE.items() for name in names.split()
}
"""Settings by the names that other tools give them."""

_BATCH = (
    "Set training.granules_per_step or lanes.granule: the granules of an update, and the examples "
    "of a granule"
)
_IN_WORDS = {
    _BATCH: (
        "batch_size train_batch_size global_batch_size per_device_train_batch_size "
        "per_device_batch_size"
    ),
    "Set training.precision=bf16": "fp16 bf16",
    "Set training.warmup to a share of the steps": "warmup_steps num_warmup_steps",
    "Set objective.temperature to its inverse": "scale",
}
IN_WORDS: Mapping[str, str] = {
    name: advice for advice, names in _IN_WORDS.items() for name in names.split()
}
"""What to do instead of a setting of other tools, by its names there."""

_CLOSE, _CLOSE_ELSEWHERE = 0.6, 0.8


def remedy(key: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown setting.

    `key` is as written, with or without its section; `known` settings have theirs.
    """
    section, _, name = key.rpartition(".")
    name = name.lower().replace("-", "_")
    by_name: dict[str, list[str]] = {}
    for setting in known:
        by_name.setdefault(setting.rpartition(".")[2], []).append(setting)
    siblings = [name for name, settings in by_name.items() if f"{section}.{name}" in settings]
    # A typing error first, then another tool's name, then a similar name.
    if close := difflib.get_close_matches(name, siblings, 1, _CLOSE_ELSEWHERE):
        meant = f"{section}.{close[0]}"
    elif name in IN_WORDS:
        return IN_WORDS[name]
    elif name in FROM_ELSEWHERE:
        meant = FROM_ELSEWHERE[name]
    elif close := difflib.get_close_matches(name, siblings, 1, _CLOSE):
        meant = f"{section}.{close[0]}"
    elif close := difflib.get_close_matches(name, by_name, 1, _CLOSE_ELSEWHERE):
        meant = " or ".join(by_name[close[0]])
    else:
        return "See docs/reference/settings.md for all settings"
    return f"Did you mean {meant}?"
