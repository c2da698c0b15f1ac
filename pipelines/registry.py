"""What can be chosen by name: one line each, imported when it is chosen.

A registry stands in the ``__init__`` of the package whose modules it lists, and imports none of
them. So settings can take their choices from registries, although what is registered imports
settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, TypeVar

from pipelines.errors import InputError

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """Names, and where what they stand for is.

    Attributes:
        kind: What the entries are, in a word, for errors.
        key: The setting that chooses one, for errors.
        entries: ``module:attribute`` by name.
        renamed: Names of before, which are still read, and what they are called now.
    """

    kind: str
    key: str
    entries: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def check(self, name: str) -> str:
        """A name as it is today.

        Raises:
            InputError: There is nothing of that name.
        """
        name = self.renamed.get(name, name)
        if name not in self.entries:
            known = ", ".join(self.entries)
            raise InputError(self.key, f"there is no {self.kind} `{name}`", f"one of {known}")
        return name

    def module(self, name: str) -> str:
        """The module of what a name stands for; imports nothing.

        Raises:
            InputError: There is nothing of that name.
        """
        return self.entries[self.check(name)].partition(":")[0]

    def load(self, name: str) -> Entry:
        """What a name stands for; imports its module.

        Raises:
            InputError: There is nothing of that name.
            ImportError: Its module needs something that is not installed.
        """
        module, _, attribute = self.entries[self.check(name)].partition(":")
        entry: Any = getattr(import_module(module), attribute)
        return entry  # type: ignore[no-any-return]
