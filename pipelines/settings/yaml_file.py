"""YAML of settings, read in bounded time and memory whatever it holds."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, Protocol

import yaml

LARGEST = 1 << 20
"""Bytes of a file: some ten thousand paths of inputs."""
MAX_VALUES = 100_000
"""Values of a document, those counted again that an alias (`*name`) repeats. Nine aliases of nine
aliases each are a billion after nine lines."""
LONGEST_NUMBER = 100
"""Characters of what is a number or a date without quotes; Python takes the square of many."""


class UnusableYamlError(ValueError):
    """The text is no YAML that settings can be read from; the message says why."""


class _Loader(yaml.SafeLoader):
    """Without tags (`!!set`): no setting needs one, and the library fails at some of them."""

    has_aliases = False

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.has_aliases = self.has_aliases or isinstance(event, yaml.AliasEvent)
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"the tag {event.tag} is not understood", event.start_mark
            )
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: dict[Any, Any]) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag != "tag:yaml.org,2002:str" and len(node.value) > LONGEST_NUMBER:
            problem = f"a number has {len(node.value)} characters"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node


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


def parse_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        UnusableYamlError: It is none, or one that nobody writes for settings.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _values(node, {}) > MAX_VALUES:
            said = "its aliases stand for" if loader.has_aliases else "it holds"
            raise UnusableYamlError(f"{said} too many values")
        return loader.construct_document(node)
    except RecursionError:
        raise UnusableYamlError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UnusableYamlError(" ".join(str(error).split())) from None


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
