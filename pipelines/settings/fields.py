"""What settings there are, section by section: for the page of them all, and for suggestions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_origin

import yaml

from pipelines.settings import Config, ObjectiveSettings, Settings
from pipelines.settings.objective import settings_by_loss


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
        if not (isinstance(model, type) and issubclass(model, Settings)):
            continue
        yield from _fields_of(section, model)
        if model.model_config.get("extra") == "allow":
            yield SettingField(f"{section}.*", "text", "", model.__doc__ or "")
        if model is ObjectiveSettings:
            yield from _fields_of_losses(section)


def kinds(section: str, name: str) -> set[Any]:
    """The generic types that a setting is of (`tuple`, `Mapping`); empty where there is none."""
    known = Config.model_fields.get(section)
    model = known.annotation if known else None
    if not (isinstance(model, type) and issubclass(model, Settings)):
        return set()
    models = [model]
    if model is ObjectiveSettings:
        models += settings_by_loss().values()
    found = [one.model_fields[name] for one in models if name in one.model_fields]
    return {get_origin(field.annotation) for field in found}


def _fields_of_losses(section: str) -> Iterator[SettingField]:
    """The keys that losses have of their own, with the losses that have them."""
    losses: dict[SettingField, list[str]] = {}
    for name, model in settings_by_loss().items():
        for field in _fields_of(section, model):
            if field.key.rpartition(".")[2] not in ObjectiveSettings.model_fields:
                losses.setdefault(field, []).append(f"`{name}`")
    for field, names in losses.items():
        yield field._replace(description=f"{', '.join(names)}: {field.description}")


def _fields_of(section: str, model: type[Settings]) -> Iterator[SettingField]:
    schema = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        value = _plain(field.get_default(call_default_factory=True))
        default = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True)
        yield SettingField(
            f"{section}.{name}",
            _kind_in_words(schema[name]),
            default.removesuffix("...\n").strip(),
            field.description or "",
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _kind_in_words(schema: Mapping[str, Any]) -> str:
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
