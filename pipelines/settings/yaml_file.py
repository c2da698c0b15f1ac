"""YAML of settings, read in bounded time and memory.

Numbers are those of YAML 1.2, in decimal, and keep their spelling: a text setting gets `2026` or
`1.0` as written. `no`, `on`, `010`, `1:30`, `1_000`, dates and all keys are texts; the
Spark conf takes `no` and `on` for what they mean. A mapping may have a key once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Any, Protocol

import yaml

LARGEST = 1 << 20
"""Bytes of a file: about ten thousand paths of inputs."""
MAX_VALUES = 100_000
"""Values of a document, repeats by aliases (`*name`) included. Nine aliases of nine aliases each
are a billion after nine lines."""
LONGEST_NUMBER = 100
"""Characters of a number without quotes; a longer one is a text."""

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
    """A text without valid YAML of settings; the message says why."""


class RepeatedKeyError(UnusableYamlError):
    """A mapping with a key twice: a reader would lose one value. `lines` count from 1."""

    def __init__(self, key: str, lines: tuple[int, int]) -> None:
        super().__init__(f"`{key}` stands in line {lines[0]} and again in line {lines[1]}")
        self.key = key
        self.lines = lines


class WrittenInt(int):
    """A whole number with its spelling."""

    written: str

    def __str__(self) -> str:
        return self.written


class WrittenFloat(float):
    """A number with its spelling."""

    written: str

    def __str__(self) -> str:
        return self.written


class WrittenTruth(str):
    """A text with the value `truth` in YAML 1.1 and in the Spark conf."""

    __slots__ = ("truth",)
    truth: bool


class Key(str):
    """A key of a mapping, with its line, from 1."""

    __slots__ = ("line",)
    line: int


def scalar(text: str) -> Any:
    """Return the value of a text without quotes: None, a truth value, a number or the text."""
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
    """A loader without tags (`!!set`): no setting needs one, and PyYAML fails at some of them."""

    has_aliases = False
    # YAML 1.1 would read `no`, `010` and dates as values; `scalar` resolves all others.
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
    """A loader without comments: a value on the command line counts to its last character."""

    def scan_to_next_token(self) -> None:
        while True:
            while self.peek() == " ":
                self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                return
            if not self.flow_level:
                self.allow_simple_key = True


class Openable(Protocol):
    """A file with a method to open it, wherever it is."""

    def open(self, mode: str) -> IO:
        """Open the file, as :meth:`pathlib.Path.open` does."""


def read_text(path: str | Openable) -> str:
    """Return the text of a file of settings.

    Raises:
        UnusableYamlError: It is too large.
        OSError: It cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    file_at: Openable = Path(path) if isinstance(path, str) else path
    with file_at.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise UnusableYamlError(f"it is longer than {LARGEST >> 20} MB")
    text: str = data.decode()
    return text


def parse_yaml(text: str, *, comments: bool = True) -> Any:
    """Return the value of a YAML document; without `comments`, ` #` is refused.

    Raises:
        UnusableYamlError: It is no YAML, or none that anybody writes for settings.
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
        cause = "its aliases stand for" if loader.has_aliases else "it holds"
        raise UnusableYamlError(f"{cause} too many values")
    return loader.construct_document(node)


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values with aliases written out; recursion exceeds the maximum."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    size = known.get(id(node))
    if size is None:
        # An alias inside its own anchor finds this count, and ends the recursion.
        known[id(node)] = MAX_VALUES + 1
        parts = [part for item in node.value for part in _parts(item)]
        size = known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return size


def _parts(item: Any) -> tuple[yaml.Node, ...]:
    """Return the key and the value of a mapping's entry, or the item of a list."""
    return item if isinstance(item, tuple) else (item,)
