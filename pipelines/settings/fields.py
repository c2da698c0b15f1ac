"""What settings there are, section by section: for the page of them all, and for suggestions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeGuard, Union, get_args, get_origin

import yaml

from pipelines.settings import Config, CorpusSettings, ObjectiveSettings, Settings
from pipelines.settings.objective import settings_by_loss
from pipelines.settings.sources import SourceForm, SourceSettings


class SettingField(NamedTuple):
    """A setting, for people.

    Attributes:
        key: With its section.
        kind: What it takes, in words.
        default: As YAML.
        description: What it is.
    """

    key: str
    kind: str
    default: str
    description: str


def fields() -> Iterator[SettingField]:
    """Every setting; a key that losses have differently, once for each way."""
    for section, section_field in Config.model_fields.items():
        model = section_field.annotation
        if not _is_part(model):
            schema = Config.model_json_schema()["properties"][section]
            told = section_field.description or ""
            yield SettingField(section, _kind_in_words(schema), "null", told)
            continue
        yield from _fields_of(section, model)
        if model.model_config.get("extra") == "allow":
            yield SettingField(f"{section}.*", "text", "", model.__doc__ or "")
        if model is ObjectiveSettings:
            yield from _fields_of_losses(section)
        if model is CorpusSettings:
            yield from _fields_of_sources()


def kinds(section: str, name: str) -> set[Any]:
    """The generic types that a setting may be of (`tuple`, `Mapping`); none where it has none.

    Args:
        section: Of the setting.
        name: In it; with a dot for one in a part of a section, as `lora.targets`.
    """
    known = Config.model_fields.get(section)
    models = [known.annotation] if known and _is_part(known.annotation) else []
    if models == [ObjectiveSettings]:
        models += settings_by_loss().values()
    found: list[Any] = models
    for part in name.split("."):
        fields = [one.model_fields for one in found if _is_part(one)]
        found = [of_part[part].annotation for of_part in fields if part in of_part]
    options = chain.from_iterable(map(_options, found))
    return {get_origin(annotation) for annotation in options} - {None}


def is_section(name: str) -> bool:
    """Whether a name is that of a section, and not of the one setting that is in none."""
    known = Config.model_fields.get(name)
    return known is not None and _is_part(known.annotation)


def _options(annotation: Any) -> Iterator[Any]:
    """The types that a setting may be of, without what they are annotated with."""
    if get_origin(annotation) is Annotated:
        yield from _options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        yield from chain.from_iterable(map(_options, get_args(annotation)))
    else:
        yield annotation


def has_parts(section: str, name: str) -> bool:
    """Whether a setting has settings of its own, as `encoder.lora`."""
    known = Config.model_fields.get(section)
    if known is None or not _is_part(known.annotation):
        return False
    field = known.annotation.model_fields.get(name)
    return field is not None and _is_part(field.annotation)


def _fields_of_losses(section: str) -> Iterator[SettingField]:
    """The keys that losses have of their own, with the losses that have them."""
    losses: dict[SettingField, list[str]] = {}
    for name, model in settings_by_loss().items():
        for field in _fields_of(section, model):
            if field.key.rpartition(".")[2] not in ObjectiveSettings.model_fields:
                losses.setdefault(field, []).append(f"`{name}`")
    for field, names in losses.items():
        yield field._replace(description=f"{', '.join(names)}: {field.description}")


def _fields_of_sources() -> Iterator[SettingField]:
    """The keys that a source of the corpus has beside those of the section."""
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
            field.description or "",
        )


def _is_part(annotation: Any) -> TypeGuard[type[Settings]]:
    """Whether something is a section of settings, or a part of one."""
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
