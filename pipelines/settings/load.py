"""Reads a YAML file and dotted overrides (`training.workers=4`) into a frozen :class:`Config`.

An :class:`InputError` refuses wrong settings before Spark starts, and names the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.base import REFUSED, RENAMED, current_key
from pipelines.settings.fields import has_parts, is_free, is_section, keys, kinds, remedy
from pipelines.settings.objective import own_keys
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings, conf_text
from pipelines.settings.yaml_file import (
    Openable,
    RepeatedKeyError,
    UnusableYamlError,
    parse_yaml,
    read_text,
    scalar,
)

_MAPPING = "Write a mapping, such as {{key: value}}"
_REMEDIES = {
    "greater_than_equal": "Set it to at least {ge}",
    "greater_than": "Set it to more than {gt}",
    "less_than_equal": "Set it to at most {le}",
    "less_than": "Set it to less than {lt}",
    "literal_error": "Choose {expected}",
    "bool_parsing": "Set it to true or false",
    "bool_type": "Set it to true or false",
    "string_too_short": "Write {min_length} or more characters",
    "too_short": "List at least {min_length}",
    "too_long": "List at most {max_length}",
    "missing": "Add the missing value",
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": "Write a list, such as [a, b]",
}
"""What to do about pydantic's errors, by their types: its own words describe the right value."""
_NEEDED = "Input should be "
_QUOTES = ("'", '"')
_SHOWN = 200
"""Characters of a value that an error shows."""

Given = str | Openable | Mapping[str, Any] | None
"""A YAML file, or its content as a mapping; None gives the defaults."""


def load(given: Given = None, overrides: Sequence[str] = (), *, recorded: bool = False) -> Config:
    """Read settings and apply the overrides.

    Args:
        overrides: `key=value` with a dotted key. A text counts to its last character, without
            quotes around it. Lists and mappings are YAML without comments; a list may lack its
            brackets (`corpus.inputs=a.csv,b.csv`). A mapping merges with that of the file.
        recorded: The file is that of a run. Keys of other losses are ignored: earlier releases
            wrote them all.

    Raises:
        InputError: Names the key, its value, and what would be right.
    """
    return parse(read_tree(given, overrides, recorded=recorded))


def read_tree(
    given: Given = None, overrides: Sequence[str] = (), *, recorded: bool = False
) -> dict[str, Any]:
    """Return the settings of :func:`load` as a nested mapping, unchecked."""
    tree: dict[str, Any] = {}
    if isinstance(given, Mapping):
        _merge(tree, given)
    elif given is not None:
        _merge(tree, _read_yaml(given), given)
    for override in overrides:
        written, separator, text = override.partition("=")
        key = current_key(written.strip())
        if not separator or not key:
            raise InputError(
                "--set",
                f"`{_shown(override)}` is not KEY=VALUE",
                "Write training.workers=2, for example",
            )
        value = _parse_value(key, text)
        if isinstance(value, Mapping) and _is_mapping(key):
            _merge(tree, {key: value})
        else:
            _put(tree, key, value)
    if recorded:
        # The file holds the recipe's settings; this release may have others under its name.
        tree.pop("recipe", None)
        if isinstance(tree.get("objective"), dict):
            tree["objective"] = own_keys(tree["objective"])
    return tree


def storage_of(tree: Mapping[str, Any]) -> StorageSettings:
    """Return the section `storage` of a tree from :func:`read_tree`, wrong elsewhere or not.

    A wrong section gives the defaults; :func:`parse` refuses it later.
    """
    try:
        return StorageSettings.model_validate(tree.get("storage", {}))
    except ValidationError:
        return DEFAULT_STORES


def parse(tree: Mapping[str, Any]) -> Config:
    """Validate a nested mapping; see :func:`load` for the errors."""
    # Only then: merging takes a mapping apart that a setting may not have at all.
    if any(f"{key}.".startswith(f"{before}.") for key, _, _ in _leaves(tree) for before in RENAMED):
        given, tree = tree, {}
        _merge(tree, given)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _input_error(error) from None


def dump(config: Config) -> str:
    """Return YAML that :func:`load` reads back to an equal configuration."""
    tree = config.model_dump(mode="json")
    if config.training.chooses_framework:
        # A framework in the file would count as the user's choice.
        del tree["training"]["framework"]
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _read_yaml(path: str | Openable) -> Mapping[str, Any]:
    try:
        tree = parse_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(
            "--config", f"there is no file {path}", "Name an existing YAML file"
        ) from None
    except RepeatedKeyError as error:
        raise _repeated(path, error.key, error.lines) from None
    except (OSError, UnicodeDecodeError, UnusableYamlError) as error:
        raise InputError(
            "--config", f"{path} is not readable YAML ({_shown(error)})", "Correct the file"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(
            "--config", f"{path} holds no mapping", "Write `section: {key: value}` in it"
        )
    return tree


def _merge(
    tree: dict[str, Any], given: Mapping[str, Any], path: str | Openable | None = None
) -> None:
    """Merge a file's settings, or an override's (without a path); refuse a key set twice."""
    lines: dict[str, int] = {}
    for written, line, value in _leaves(given):
        key = current_key(written)
        name = key.replace("spark.spark.", "spark.", 1) if key.startswith("spark.") else key
        if name in lines:
            raise _repeated(path, name, (lines[name], line))
        lines[name] = line
        # YAML gives null for a section with all its settings commented out.
        if (value is None and path is not None) or value == {}:
            section, _, part = key.partition(".")
            if is_section(key) or has_parts(section, part):
                continue
        _put(tree, key, value)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int, Any]]:
    """Yield the whole key, the line and the value of each setting."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and not is_free(name):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, getattr(key, "line", 0), value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    section, _, rest = key.partition(".")
    if not rest:
        tree[section] = value
        return
    branch = tree.setdefault(section, {})
    if not isinstance(branch, dict):
        raise InputError(
            section, f"`{_shown(branch)}` is not a section", f"Write `{section}: {{key: value}}`"
        )
    name, _, entry = rest.partition(".")
    if section == "spark":
        branch[rest.removeprefix("spark.")] = conf_text(value)
    elif entry and (has_parts(section, name) or Mapping in kinds(section, name)):
        # The user's names may have dots in them, like metrics.
        entries = branch.setdefault(name, {})
        if not isinstance(entries, dict):
            raise InputError(
                f"{section}.{name}",
                f"`{_shown(entries)}` is no mapping",
                f"Write `{{{entry}: {_shown(value)}}}`",
            )
        entries[entry] = value
    else:
        branch[rest] = value


def _parse_value(key: str, text: str) -> Any:
    """Return the value of an override: its text, unless the key takes a list or a mapping."""
    section, _, name = key.partition(".")
    first = text.strip()[:1]
    if tuple in kinds(section, name):
        if scalar(text) is None and text.strip():
            return None
        if first not in ("[", "{"):
            return _items(text)
    elif not _is_mapping(key):
        if first in _QUOTES:
            with suppress(UnusableYamlError):
                quoted = parse_yaml(text, comments=False)
                return quoted if isinstance(quoted, str) else text
        # A blank or a tab is a text, such as a separator.
        return scalar(text) if first or not text else text
    try:
        return parse_yaml(text, comments=False)
    except RepeatedKeyError as error:
        raise _repeated(None, f"{key}.{error.key}", error.lines) from None
    except UnusableYamlError:
        raise InputError(key, f"`{_shown(text)}` is not a YAML value", "Quote it") from None


def _items(text: str) -> list[str]:
    """Split a text at commas; quoted items may hold commas."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(part.startswith(_QUOTES) for part in parts):
        with suppress(UnusableYamlError):
            quoted = parse_yaml(f"[{text}]", comments=False)
            if all(isinstance(part, str) for part in quoted):
                return list(quoted)
    return parts


def _is_mapping(key: str) -> bool:
    """Tell whether settings, or entries of the user's own, stand below a key."""
    section, _, name = key.partition(".")
    return is_section(key) or has_parts(section, name) or Mapping in kinds(section, name)


def _repeated(path: str | Openable | None, key: str, lines: tuple[int, int]) -> InputError:
    if path is None:
        return InputError("--set", f"`{_shown(key)}` stands twice in a value", "Keep one of them")
    first, again = lines
    return InputError(
        "--config",
        f"{path} sets `{_shown(key)}` in line {first} and again in line {again}",
        "Keep one of them",
    )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    given, kind = first["input"], first["type"]
    # For a union, pydantic's location ends with the type that it tried.
    parts = (part for part in first["loc"] if not isinstance(part, int))
    key = ".".join(part for part in parts if not part.startswith(("constrained-", "literal[")))
    # YAML allows an empty key.
    key = key or '""'
    shown = "null (`~`, or nothing)" if given is None else f"`{_shown(given)}`"
    if kind == REFUSED:
        return InputError(key, first["ctx"]["problem"], first["ctx"]["remedy"])
    if kind == "extra_forbidden":
        known = dict.fromkeys(keys())
        # The first key in an unknown section shows which setting was meant.
        inside = given if isinstance(given, dict) else {}
        written = ".".join((key, *list(inside)[:1]))
        return InputError(key, "there is no such setting", remedy(written, known))
    if kind == "tuple_type" and not isinstance(given, dict):
        example = "VALUE" if given is None else _shown(given)
        return InputError(key, f"{shown} is no list", f"Write [{example}]")
    if kind == "string_type":
        return InputError(
            key,
            f"{shown} does not fit",
            "Write a text, in quotes if it is null or looks like a list or a mapping",
        )
    return InputError(key, f"{shown} does not fit", _remedy_of(first))


def _remedy_of(error: ErrorDetails) -> str:
    """Return the remedy for an error of pydantic."""
    if error["type"] in _REMEDIES:
        # The bounds of fractional settings are floats: 1 reads better than 1.0.
        values = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in error.get("ctx", {}).items()
        }
        return _REMEDIES[error["type"]].format(**values)
    # After a comma pydantic explains how its parser failed.
    needed = error["msg"].partition(", ")[0]
    return f"Write {needed.removeprefix(_NEEDED)}" if needed.startswith(_NEEDED) else error["msg"]
