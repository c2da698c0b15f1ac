"""The questions in replies of a language model, in the forms that models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Some chat templates write the opening tag into the prompt, and a reply may end in its thoughts.
_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL)
_JSON = re.compile(r'^[ \t]*(?=\{\s*["}])|(?:^|[:\uff1a])[ \t]*\[\s*(?=["{\]])', re.MULTILINE)
"""The beginning of a JSON object, or of a list, perhaps in an object that is cut off."""
_BETWEEN = re.compile(r"[\s,]*")
_FIELDS = ("question", "query", "search_query", "keywords", "claim", "statement", "q")
_NUMBERED = re.compile(r"\D{0,12}\d+")
_FENCE = re.compile(r"^(?:```|~~~)\w*$")
_HEADING = re.compile(r"#+\s")
_INTRODUCTION = re.compile(r"(?:sure|certainly|of course|absolutely|okay|ok|here)\b", re.IGNORECASE)
_NAMES = "q|question|query|statement|claim|answer"
_MARK = re.compile(
    rf"""[*_]{{0,2}}(?:                                     # **1. What?**
      (?: [-*\u2022\u2013] | \#+ | \(?\d{{1,2}}\s?[.):\u3001\uff0e]
        | (?:a\s+)?(?:{_NAMES})\s*\d*\s*[:.] ) [*_]*\s+
      | \(?\d{{1,2}}(?: [\u3001\uff0e]
        | [.):][*_]*(?=["'\u00a1-\uffff] | (?-i:[A-Z][a-z])) ) )""",
    re.IGNORECASE | re.VERBOSE,
)
_QUOTES = "\"'`*_\u00ab\u00bb\u2018\u2019\u201c\u201d\u201e"
_COLONS = (":", "\uff1a")
_ASKS = ("?", "\uff1f", "\u061f", "\u037e")
"""Question marks: Latin, Chinese, Arabic and Greek."""


def questions_of(reply: str, count: int, *, is_cut: bool = False) -> list[str]:
    """Return at most ``count`` questions of a reply: its lines, or the strings of a JSON list.

    Thoughts of reasoning models, numbers, bullets, quotes and introductions are left out, and so is
    half a question at the end of a reply that ``is_cut``.
    """
    text = _THOUGHTS.sub("", reply).strip()
    found = _listed(text)
    if found is None:
        found = _lines(text, is_cut=is_cut)
    bare = (_bare(one) for one in found)
    return [one for one in bare if one][:count]


def _listed(text: str) -> list[str] | None:
    """Return the texts of a JSON list, also of one that is cut off, or of a row of objects.

    None for other texts, also for questions with JSON in them.
    """
    for begin in _JSON.finditer(text):
        if _asks(text[: begin.start()]):
            return None
        values, end = _values(text, begin.end())
        rest = text[end:].lstrip("]} \t\n,")
        if (values or not rest) and (rest.startswith(('"', "{")) or not _asks(rest)):
            return [" ".join(one.split()) for value in values for one in _texts(value)]
    return None


def _asks(text: str) -> bool:
    return any(mark in text for mark in _ASKS)


def _values(text: str, place: int) -> tuple[list[Any], int]:
    """Return the JSON values from a place on, up to the first one that is not whole, and its place.

    Commas and white space stand between them.
    """
    decoder = json.JSONDecoder()
    values: list[Any] = []
    while True:
        between = _BETWEEN.match(text, place)
        place = between.end() if between else place
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return values, place
        values.append(value)


def _texts(value: object) -> Iterator[str]:
    """Yield the questions of a value.

    Those of an object are its field for one, its lists, its numbered fields, or its longest text.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        texts = {name.lower(): one for name, one in value.items() if isinstance(one, str)}
        named = [texts[name] for name in _FIELDS if name in texts][:1]
        lists = [text for one in value.values() if isinstance(one, list) for text in _texts(one)]
        numbered = [texts[name] for name in texts if _NUMBERED.fullmatch(name)]
        likely = sorted(texts.values(), key=lambda text: (text.endswith(_ASKS), len(text)))
        yield from named or lists or numbered or likely[-1:]


def _lines(text: str, *, is_cut: bool) -> list[str]:
    """Return the lines that may be questions; where most are numbered, those alone."""
    lines = [line.strip() for line in text.splitlines()]
    if is_cut:
        lines = lines[:-1]
    lines = [line for line in lines if _is_text(line)]
    # Headings and introductions stand before others only.
    lines = [
        line for line in lines if not _HEADING.match(line) or _MARK.match(_bare(line))
    ] or lines
    if len(lines) > 1 and _INTRODUCTION.match(lines[0]) and not lines[0].endswith(_ASKS):
        lines = lines[1:]
    marked = [line for line in lines if _MARK.match(line)]
    if len(marked) > 1 and 2 * len(marked) >= len(lines):
        lines = [line for line in lines if line in marked or line.endswith(_ASKS)]
    return lines


def _is_text(line: str) -> bool:
    """Return whether a line holds more than signs, and introduces nothing."""
    bare = line.strip(_QUOTES)
    is_rule = re.search(r"\w", line) is None
    return not is_rule and not bare.endswith(_COLONS) and _FENCE.match(line) is None


def _bare(line: str) -> str:
    """Return a line without its number or bullet, and without quotes around it."""
    before = None
    while before != line:
        before, line = line, _MARK.sub("", line, count=1) if _MARK.match(line) else line
    return line.strip().strip(_QUOTES).strip()
