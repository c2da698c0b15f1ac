"""Settings from YAML and from the command line, and errors that name the key.

YAML of settings, read in bounded time and memory whatever it holds.

Numbers are those of YAML 1.2, in decimal, and remember how they are written: a setting that asks
for text gets `2026` or `1.0` as it stands. `no`, `on`, `010`, `1:30`, `1_000` and dates are texts,
and so is every key; the Spark conf takes `no` and `on` for what they mean. A mapping may have a key
once.

From a YAML file and overrides to settings.

One YAML file and dotted overrides on top (``training.workers=4``) give one frozen
:class:`~pipelines.settings.Config`. Whatever is wrong is refused here, before Spark starts, as an
:class:`~pipelines.errors.InputError` that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import yaml
from pydantic import ValidationError

from pipelines.errors import InputError
from pipelines.settings import Config
from pipelines.settings.base import REFUSED
from pipelines.settings.fields import fields, has_parts, is_section, kinds, remedy
from pipelines.settings.objective import own_keys
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings, conf_text

LARGEST = 1 << 20
"""Bytes of a file: some ten thousand paths of inputs."""
MAX_VALUES = 100_000
"""Values of a document, those counted again that an alias (`*name`) repeats. Nine aliases of nine
aliases each are a billion after nine lines."""
LONGEST_NUMBER = 100
"""Characters of what is a number without quotes; a longer one is a text."""

_MERGE, _TEXT = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:str"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_TRUTHS = {"true": True, "false": False}
_OTHER_TRUTHS = {
    spelling: truth
    for word, truth in {**_TRUTHS, "yes": True, "no": False, "on": True, "off": False}.items()
    for spelling in (word, word.capitalize(), word.upper())
    if spelling not in _TRUTHS
}


class UnusableYamlError(ValueError):
    """The text is no YAML that settings can be read from; the message says why."""


class RepeatedKeyError(UnusableYamlError):
    """A mapping has a key twice, of which a reader would lose one.

    Args:
        key: As it is written.
        lines: In which it stands, from 1.
    """

    def __init__(self, key: str, lines: tuple[int, int]) -> None:
        super().__init__(f"`{key}` stands in line {lines[0]} and again in line {lines[1]}")
        self.key = key
        self.lines = lines


class WrittenInt(int):
    """A whole number that is shown as it is written."""

    written: str

    def __str__(self) -> str:
        return self.written


class WrittenFloat(float):
    """A number that is shown as it is written."""

    written: str

    def __str__(self) -> str:
        return self.written


class WrittenTruth(str):
    """A text that YAML 1.1 takes for a truth value, as the Spark conf has it.

    Attributes:
        truth: That value.
    """

    __slots__ = ("truth",)
    truth: bool


class Key(str):
    """A key of a mapping.

    Attributes:
        line: In which it stands, from 1.
    """

    __slots__ = ("line",)
    line: int


def scalar(text: str) -> Any:
    """What a value without quotes stands for: nothing, a truth value, a number or the text."""
    plain = text.strip()
    if plain in ("", "~", "null", "Null", "NULL"):
        return None
    if len(plain) <= LONGEST_NUMBER and _DECIMAL.fullmatch(plain):
        # YAML writes .inf and .nan, and Python does without the point.
        found: WrittenInt | WrittenFloat = (
            WrittenInt(plain)
            if _INTEGER.fullmatch(plain)
            else WrittenFloat(re.sub(r"\.(?=[in])", "", plain, flags=re.IGNORECASE))
        )
        found.written = plain
        return found
    return _TRUTHS.get(plain, text)


class _Loader(yaml.SafeLoader):
    """Without tags (`!!set`): no setting needs one, and the library fails at some of them."""

    has_aliases = False
    # All other values are resolved by `scalar`.
    yaml_implicit_resolvers = {"<": [(_MERGE, re.compile("<<"))]}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.has_aliases = self.has_aliases or isinstance(event, yaml.AliasEvent)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"the tag {event.tag} is not understood", event.start_mark
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: dict[Any, Any]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise RepeatedKeyError(key.value, (lines[key.value], line))
                lines[key.value] = line
        return node

    def construct_scalar_or_text(self, node: yaml.ScalarNode) -> Any:
        found = scalar(node.value) if node.style is None else node.value
        if node.style is None and found in _OTHER_TRUTHS:
            truth = WrittenTruth(found)
            truth.truth = _OTHER_TRUTHS[found]
            return truth
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        return {
            self._key(key): self.construct_object(value, deep=deep)  # type: ignore[no-untyped-call]
            for key, value in node.value
        }

    def _key(self, node: yaml.Node) -> Key:
        if not isinstance(node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is no text", node.start_mark)
        key = Key(node.value)
        key.line = node.start_mark.line + 1
        return key


_Loader.add_constructor(_TEXT, _Loader.construct_scalar_or_text)


class _LoaderOfValues(_Loader):
    """Without comments: what the command line gives counts to its last character."""

    def scan_to_next_token(self) -> None:
        while True:
            while self.peek() == " ":
                self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                return
            if not self.flow_level:
                self.allow_simple_key = True


class Openable(Protocol):
    """A file that has a method to open it, wherever it is."""

    def open(self, mode: str) -> IO:
        """As of :meth:`pathlib.Path.open`."""


def read_text(path: str | Openable) -> str:
    """The text of a file of settings.

    Raises:
        UnusableYamlError: It is too large.
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    file_at: Openable = Path(path) if isinstance(path, str) else path
    with file_at.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UnusableYamlError(f"longer than {LARGEST >> 20} MB")
    text: str = data.decode()
    return text


def parse_yaml(text: str, *, comments: bool = True) -> Any:
    """The value of a YAML document.

    Args:
        text: Of the document.
        comments: Whether ` #` begins one, and is not refused.

    Raises:
        UnusableYamlError: It is none, or one that nobody writes for settings.
    """
    try:
        return _value((_Loader if comments else _LoaderOfValues)(text))
    except RecursionError:
        raise UnusableYamlError("it is nested too deeply") from None
    except UnusableYamlError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise UnusableYamlError(" ".join(str(error).split())) from None


def _value(loader: _Loader) -> Any:
    node = loader.get_single_node()
    if node is None:
        return None
    if _values(node, {}) > MAX_VALUES:
        said = "its aliases stand for" if loader.has_aliases else "it holds"
        raise UnusableYamlError(f"{said} too many values")
    return loader.construct_document(node)


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values there are if aliases are written out; one that holds itself has no end."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    size = known.get(id(node))
    if size is None:
        # Met again before its own parts are counted, it is a part of itself.
        known[id(node)] = MAX_VALUES + 1
        parts = [part for item in node.value for part in _parts(item)]
        size = known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return size


def _parts(item: Any) -> tuple[yaml.Node, ...]:
    """The key and the value of an entry of a mapping, or the item of a list."""
    return item if isinstance(item, tuple) else (item,)


_QUOTES = ("'", '"')
_SHOWN = 200
"""Characters of a value in an error."""


def load(
    path: str | Openable | None = None, overrides: Sequence[str] = (), *, recorded: bool = False
) -> Config:
    """Reads the YAML file and applies the overrides.

    Args:
        path: YAML file; None gives the defaults.
        overrides: ``key=value`` with a dotted key. A text counts to its last character, quotes
            around it left out. Lists and mappings are YAML without comments, and a list may do
            without its brackets (``corpus.inputs=a.csv,b.csv``). A mapping is merged with what the
            file has there.
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
    if path is not None:
        _merge(tree, _read_yaml(path), path)
    for override in overrides:
        key, separator, text = override.partition("=")
        key = key.strip()
        if not separator or not key:
            raise InputError(
                "--set", f"`{_shown(override)}` is not KEY=VALUE", "for example training.workers=2"
            )
        value = _parse_value(key, text)
        if isinstance(value, Mapping) and _is_mapping(key):
            _merge(tree, {key: value})
        else:
            _put(tree, key, value)
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
    except RepeatedKeyError as error:
        raise _repeated(path, error.key, error.lines) from None
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


def _merge(
    tree: dict[str, Any], given: Mapping[str, Any], path: str | Openable | None = None
) -> None:
    """Puts all that a mapping sets into the tree.

    Args:
        given: Of the file at `path`, or of an override.

    Raises:
        InputError: It sets a key twice, with a section and in it.
    """
    lines: dict[str, int] = {}
    for key, line, value in _leaves(given):
        name = key.replace("spark.spark.", "spark.", 1) if key.startswith("spark.") else key
        if name in lines:
            raise _repeated(path, name, (lines[name], line))
        lines[name] = line
        # Nothing is set in a section all of whose settings are commented out.
        if (value is None and path is not None) or value == {}:
            section, _, part = key.partition(".")
            if is_section(key) or has_parts(section, part):
                continue
        _put(tree, key, value)


def _parse_value(key: str, text: str) -> Any:
    """What an override gives: a text as it stands, unless its setting is a list or a mapping."""
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
    return _yaml_value(key, text)


def _yaml_value(key: str, text: str) -> Any:
    try:
        return parse_yaml(text, comments=False)
    except RepeatedKeyError as error:
        raise _repeated(None, f"{key}.{error.key}", error.lines) from None
    except UnusableYamlError:
        raise InputError(key, f"`{_shown(text)}` is not a YAML value", "quote it") from None


def _repeated(path: str | Openable | None, key: str, lines: tuple[int, int]) -> InputError:
    if path is None:
        return InputError("--set", f"`{_shown(key)}` is set twice in a value", "keep one of them")
    first, again = lines
    return InputError(
        "--config",
        f"{path} sets `{_shown(key)}` in line {first} and again in line {again}",
        "keep one of them",
    )


def _items(text: str) -> list[str]:
    """What is between commas; one in quotes may have commas itself."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(part.startswith(_QUOTES) for part in parts):
        with suppress(UnusableYamlError):
            quoted = parse_yaml(f"[{text}]", comments=False)
            if all(isinstance(part, str) for part in quoted):
                return list(quoted)
    return parts


def _shown(value: object) -> str:
    """A value in a line that is not long."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int, Any]]:
    """Each setting with its whole key, and the line in which its key stands."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, getattr(key, "line", 0), value


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


def _is_mapping(key: str) -> bool:
    """Whether settings stand below a key, or entries of the user's own."""
    section, _, name = key.partition(".")
    return is_section(key) or has_parts(section, name) or Mapping in kinds(section, name)


def _input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    # Of a setting of several types, the place ends with the type that was tried.
    parts = (part for part in first["loc"] if not isinstance(part, int))
    key = ".".join(part for part in parts if not part.startswith(("constrained-", "literal[")))
    # A name may be empty, too.
    key = key or '""'
    if first["type"] == "extra_forbidden":
        known = dict.fromkeys(field.key.removesuffix(".*") for field in fields())
        # Of a section that there is not, what was set in it tells what was meant.
        inside = first["input"] if isinstance(first["input"], dict) else {}
        written = ".".join((key, *list(inside)[:1]))
        return InputError(key, "there is no such setting", remedy(written, known))
    given = first["input"]
    shown = "null (`~`, or nothing)" if given is None else f"`{_shown(given)}`"
    if first["type"] == "tuple_type" and not isinstance(given, dict):
        example = "VALUE" if given is None else _shown(given)
        return InputError(key, f"{shown} is no list", f"write [{example}]")
    if first["type"] == REFUSED:
        return InputError(key, first["ctx"]["problem"], first["ctx"]["remedy"])
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "string_type":
        return InputError(
            key,
            f"{shown} does not fit",
            "write a text, in quotes where it is null or looks like a list or a mapping",
        )
    return InputError(key, f"{shown} does not fit", message)
