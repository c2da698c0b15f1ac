"""The questions in replies of a language model, in the forms that models write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Some chat templates write the opening tag into the prompt, and a reply may end in its thoughts.
_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL)
_JSON = (
    re.compile(r'^\s*(?=\{\s*")', re.MULTILINE),
    re.compile(r'(?:^|[:\uff1a])\s*\[\s*(?=["{])', re.MULTILINE),
)
"""The beginnings of a JSON object, and of a list, perhaps in an object that is cut off."""
_BETWEEN = re.compile(r"[\s,]*")
_FIELDS = ("question", "query", "claim", "text")
_NUMBERED = re.compile(r"\D{0,12}\d+")
_NAMES = "q|question|query|statement|claim|answer"
_MARK = re.compile(
    rf"""[*\#>]+\s*                                          # Markdown
    | [-\u2022\u2013]\s+
    | (?:(?:a\s+)?(?:{_NAMES}))\s*\d*\s*[:.][*_]*\s+         # Question 1:
    | \(?\d{{1,2}}\s?[.):\u3001\uff0e][*_]*
        (?: \s+ | (?=["'\u00a1-\uffff] | (?-i:[A-Z][a-z])) )""",
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
    found = _listed(text) or _lines(text, is_cut=is_cut)
    if len(found) > count:
        # "Sure! Here you go." is none of them.
        asking = [one for one in found if one.endswith(_ASKS)]
        found = asking if len(asking) >= count else found
    return found[:count]


def _listed(text: str) -> list[str]:
    """Return the texts of a JSON list, also of one that is cut off, or of a row of objects."""
    begins = [found for form in _JSON if (found := form.search(text)) is not None]
    for begin in sorted(begins, key=lambda found: found.start()):
        values = _values(text, begin.end())
        texts = (" ".join(one.split()) for value in values for one in _texts(value))
        if listed := [one for one in texts if one]:
            return listed
    return []


def _values(text: str, place: int) -> Iterator[Any]:
    """Yield the JSON values from a place on, up to the first one that is not whole."""
    decoder = json.JSONDecoder()
    while True:
        between = _BETWEEN.match(text, place)
        try:
            value, place = decoder.raw_decode(text, between.end() if between else place)
        except ValueError:
            return
        yield value


def _texts(value: object) -> Iterator[str]:
    """Yield the questions of a value.

    Those of an object are its field for one, its numbered fields, its lists, or its last text.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        texts = {name.lower(): one for name, one in value.items() if isinstance(one, str)}
        named = [texts[name] for name in _FIELDS if name in texts][:1]
        numbered = [texts[name] for name in texts if _NUMBERED.fullmatch(name)]
        lists = [text for one in value.values() if isinstance(one, list) for text in _texts(one)]
        yield from named or numbered or lists or [*texts.values()][-1:]


def _lines(text: str, *, is_cut: bool) -> list[str]:
    """Return the lines that may be questions; where some are numbered, those alone."""
    lines = [line.strip() for line in text.splitlines()]
    if is_cut:
        lines = lines[:-1]
    found = [(_bare(line), _MARK.match(line) is not None) for line in lines]
    # "Here are three questions:" introduces the rest, and "---" parts it.
    found = [(line, mark) for line, mark in found if _is_text(line)]
    if any(mark for _, mark in found):
        found = [(line, mark) for line, mark in found if mark or line.endswith(_ASKS)]
    return [line for line, _ in found]


def _is_text(line: str) -> bool:
    return not line.endswith(_COLONS) and re.search(r"\w", line) is not None


def _bare(line: str) -> str:
    """Return a line without its number or bullet, and without quotes around it."""
    before = None
    while before != line:
        before, line = line, _MARK.sub("", line, count=1) if _MARK.match(line) else line
    return line.strip().strip(_QUOTES).strip()
