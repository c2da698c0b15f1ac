"""From a YAML file and overrides to settings.

One YAML file and dotted overrides on top (``training.workers=4``) give one frozen
:class:`~pipelines.settings.Config`. Whatever is wrong is refused here, before Spark starts, as an
:class:`~pipelines.errors.InputError` that names the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.fields import fields, has_parts, is_section, kinds
from pipelines.settings.objective import own_keys
from pipelines.settings.paths import NOT_LOCAL
from pipelines.settings.stages import conf_text
from pipelines.settings.storage import DEFAULT_STORES, StorageSettings
from pipelines.settings.suggestions import remedy
from pipelines.settings.yaml_file import Openable, UnusableYamlError, parse_yaml, read_text

_SHOWN = 200
"""Characters of a value in an error."""


def load(
    path: str | Openable | None = None, overrides: Sequence[str] = (), *, recorded: bool = False
) -> Config:
    """Reads the YAML file and applies the overrides.

    Args:
        path: YAML file; None gives the defaults.
        overrides: ``key=value`` with a dotted key; the value is read as YAML, and a list may do
            without its brackets (``corpus.inputs=a.csv,b.csv``).
        recorded: The file is that of a run, where keys of other losses say nothing: earlier
            releases wrote them all.

    Raises:
        InputError: Naming the key, its value, and what would be right.
    """
    return parse(read_tree(path, overrides, recorded=recorded))


def read_tree(
    path: str | Openable | None = None, overrides: Sequence[str] = (), *, recorded: bool = False
) -> dict[str, Any]:
    """Reads them as :func:`load` does, which checks them too; a nested mapping."""
    tree: dict[str, Any] = {}
    for key, value in _leaves(_read_yaml(path) if path is not None else {}):
        # A section all of whose settings are commented out.
        _put(tree, key, {} if value is None and is_section(key) else value)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise InputError(
                "--set", f"`{_shown(override)}` is not KEY=VALUE", "for example training.workers=2"
            )
        _put(tree, key.strip(), _parse_value(key.strip(), text))
    if recorded:
        # All that the recipe of its release set is in the file.
        tree.pop("recipe", None)
        if isinstance(tree.get("objective"), dict):
            tree["objective"] = own_keys(tree["objective"])
    return tree


def storage_of(tree: Mapping[str, Any]) -> StorageSettings:
    """The section `storage` of settings that may be wrong elsewhere.

    Args:
        tree: As :func:`read_tree` gives it.

    Returns:
        Its defaults where it is wrong itself, which :func:`parse` refuses.
    """
    try:
        return StorageSettings.model_validate(tree.get("storage", {}))
    except ValidationError:
        return DEFAULT_STORES


def parse(tree: Mapping[str, Any]) -> Config:
    """Validates a nested mapping; see :func:`load` for the errors."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _input_error(error) from None


def dump(config: Config) -> str:
    """The configuration as YAML that :func:`load` reads back to an equal value."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _read_yaml(path: str | Openable) -> Mapping[str, Any]:
    try:
        tree = parse_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(
            "--config", f"there is no file {path}", "name an existing YAML file"
        ) from None
    except (OSError, UnicodeDecodeError, UnusableYamlError) as error:
        raise InputError(
            "--config", f"{path} is not readable YAML ({_shown(error)})", "mend the file"
        ) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(
            "--config", f"{path} holds no mapping", "write `section: {key: value}` in it"
        )
    return tree


def _parse_value(key: str, text: str) -> Any:
    if _is_list(key) and text.strip() not in ("null", "~") and text.strip()[:1] not in ("[", "{"):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return parse_yaml(text)
    except UnusableYamlError:
        raise InputError(key, f"`{_shown(text)}` is not a YAML value", "quote it") from None


def _shown(value: object) -> str:
    """A value in a line that is not long."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    section, _, rest = key.partition(".")
    if not rest:
        tree[section] = value
    else:
        branch = tree.setdefault(section, {})
        if not isinstance(branch, dict):
            raise InputError(
                section,
                f"`{_shown(branch)}` is not a section",
                f"write `{section}: {{key: value}}`",
            )
        name, _, entry = rest.partition(".")
        if section == "spark":
            branch[rest.removeprefix("spark.")] = conf_text(value)
        elif entry and (has_parts(section, name) or Mapping in kinds(section, name)):
            # Names of the user's own may have dots in them.
            entries = branch.setdefault(name, {})
            if not isinstance(entries, dict):
                raise InputError(
                    f"{section}.{name}",
                    f"`{_shown(entries)}` is no mapping",
                    f"write `{{{entry}: {_shown(value)}}}`",
                )
            entries[entry] = value
        else:
            branch[rest] = value


def _is_list(key: str) -> bool:
    """Whether a setting, with its section, is a list."""
    section, _, name = key.partition(".")
    return tuple in kinds(section, name)


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    # A name may be empty, too.
    key = key or '""'
    if first["type"] == "extra_forbidden":
        known = dict.fromkeys(field.key.removesuffix(".*") for field in fields())
        # Of a section that there is not, what was set in it tells what was meant.
        inside = first["input"] if isinstance(first["input"], dict) else {}
        written = ".".join((key, *list(inside)[:1]))
        return InputError(key, "there is no such setting", remedy(written, known))
    if first["type"] == "tuple_type" and not isinstance(first["input"], dict):
        given = _shown(first["input"])
        return InputError(key, f"`{given}` is no list", f"write [{given}]")
    if first["type"] == NOT_LOCAL:
        return InputError(key, first["ctx"]["problem"], first["ctx"]["remedy"])
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(key, f"`{_shown(first['input'])}` does not fit", message)
