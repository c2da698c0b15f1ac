"""Names of columns that stand for an element of a column of lists: `wrong[2]`, `wrong[0:5]`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

_ELEMENT = re.compile(r"(?P<column>.+)\[(?P<place>\d+)\]")
_ELEMENTS = re.compile(r"(?P<column>.+)\[(?P<first>\d*):(?P<end>\d+)\]")


def spelled_out(names: Iterable[str]) -> Iterator[str]:
    """The names, with `wrong[0:3]` as `wrong[0]`, `wrong[1]` and `wrong[2]`."""
    for name in names:
        found = _ELEMENTS.fullmatch(name)
        if found is None:
            yield name
            continue
        for place in range(int(found["first"] or 0), int(found["end"])):
            yield f"{found['column']}[{place}]"


def element_of(name: str, columns: Collection[str]) -> tuple[str, int] | None:
    """The column of lists and the place that a name stands for; None if it is a column's own.

    Args:
        name: Of a wanted column.
        columns: Those that there are: one of this very name is the one that is meant.
    """
    found = None if name in columns else _ELEMENT.fullmatch(name)
    return None if found is None else (found["column"], int(found["place"]))


def column_of(name: str, columns: Collection[str]) -> str:
    """The column that is read for a name."""
    element = element_of(name, columns)
    return name if element is None else element[0]
