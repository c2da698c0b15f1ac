"""Which signs a file of separated fields uses, and its lines as RFC 4180 has them.

Spark and MySQL write a quote within quotes as `\\"`, and a backslash there as two. RFC 4180 doubles
the quote. Lines are rewritten before they are parsed, so there is one parser, and what it says of
broken quotes holds for every dialect. Runs on executors.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol


class NamesDialect(Protocol):
    """A section of the settings that says how its CSV files are written."""

    @property
    def csv_separator(self) -> str | None:
        """Between the fields."""

    @property
    def csv_escape(self) -> str | None:
        """Before a quote within quotes."""


@dataclass(frozen=True)
class Dialect:
    """How the fields of a line are told apart.

    Attributes:
        separator: Between them.
        escape: Before a quote, or itself, within quotes; None where a quote is doubled alone.
    """

    separator: str = ","
    escape: str | None = None

    @classmethod
    def of(cls, settings: NamesDialect) -> Dialect:
        """Return the dialect that settings name."""
        return cls(settings.csv_separator or ",", settings.csv_escape)

    def reader(self, lines: Iterable[str], *, strict: bool) -> Any:
        """Return Python's reader over lines, the first of which begins a record.

        Args:
            lines: With their ends.
            strict: Whether broken quotes are an error.
        """
        return csv.reader(self.rewritten(lines), delimiter=self.separator, strict=strict)

    def rewritten(self, lines: Iterable[str]) -> Iterable[str]:
        """Return lines in which quotes within quotes are doubled, one for each."""
        return lines if self.escape is None else _rewritten(lines, self.separator, self.escape)


RFC_4180 = Dialect()


@cache
def _within_quotes(escape: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what matches the inside of quotes, up to the quote that closes them, and escapes."""
    sign = re.escape(escape)
    inside = re.compile(rf'(?:[^"{sign}]+|""|{sign}["{sign}]|{sign}(?!"))*')
    return inside, re.compile(rf'{sign}(["{sign}])')


def _rewritten(lines: Iterable[str], separator: str, escape: str) -> Iterator[str]:
    inside, escaped = _within_quotes(escape)
    is_open = False
    for line in lines:
        if '"' not in line and (not is_open or escape not in line):
            yield line
            continue
        parts: list[str] = []
        # Outside of quotes it is the beginning of a field whenever the loop comes round.
        place = 0
        while place < len(line):
            if is_open or line[place] == '"':
                begin = place if is_open else place + 1
                end = _end_of(inside, line, begin)
                text = escaped.sub(lambda found: _PLAIN.get(found[1], found[1]), line[begin:end])
                parts.append(line[place:begin] + text)
                place, is_open = end, end == len(line)
                if is_open:
                    break
            stop = line.find(separator, place)
            stop = len(line) if stop < 0 else stop + 1
            parts.append(line[place:stop])
            place = stop
        yield "".join(parts)


_PLAIN = {'"': '""'}


def _end_of(inside: re.Pattern[str], line: str, begin: int) -> int:
    found = inside.match(line, begin)
    assert found is not None, "it matches nothing at least"
    return found.end()
