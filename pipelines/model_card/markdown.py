"""Text of any kind as Markdown that shows it as it is, and changes nothing around it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pipelines.report.text import MAX_CHARACTERS, shown

LONGEST = 5000
"""Characters of a text that somebody has written for the card."""

# What Markdown, or HTML within it, takes for markup: an underscore but for one within a word, and
# what makes a heading, a list or a rule at the beginning of a line.
_MARKUP = re.compile(r"[\\`*\[\]<>~$#|&]|(?<![^\W_])_|_(?![^\W_])|^[-+=]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?!\S)")
# A backslash before a bar would end a cell if another one stood before it.
_AS_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
_BACKTICKS = re.compile(r"`+")


def plain(text: object, most: int = MAX_CHARACTERS) -> str:
    """A text within a line or a cell: one line, at most so many characters, without markup."""
    escaped = _MARKUP.sub(_escaped, shown(str(text), most))
    return _NUMBERED.sub(r"\1\\\2", escaped)


def _escaped(found: re.Match[str]) -> str:
    return _AS_ENTITIES.get(found[0], f"\\{found[0]}")


def literal(text: str) -> str:
    """A text as Python has it in source code; line ends and what cannot be seen are escapes."""
    quoted = f'"{text}"'
    return quoted if text.isprintable() and not set('"\\') & set(text) else repr(text)


def code(text: str) -> str:
    """A text as code within a line: one that :func:`literal` gives, or any other on one line."""
    marks = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    space = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{marks}{space}{text}{space}{marks}"


def fenced(language: str, source: str) -> list[str]:
    """The lines of a block of code, in which no line begins with three backticks."""
    return [f"```{language}", *source.split("\n"), "```"]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: int = 0) -> list[str]:
    """The lines of a table.

    Args:
        heads: Of the columns.
        rows: Cells that are Markdown already; texts of others have passed :func:`plain`.
        right: So many columns, the last ones, are aligned to the right.
    """
    left = len(heads) - right
    marks = [":--" if place < left else "--:" for place in range(len(heads))]
    return [f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows)]
