"""Filters of generated questions that need no other question: pure functions of one row.

Language models copy titles, ask as in an exam, answer instead of asking, and slip into English.
Such questions teach a model nothing about real ones. Each filter has a name, by which the funnel
counts its drops; the first that applies counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pipelines.corpus.cleaning.rules import UNKNOWN, identify
from pipelines.settings import QuestionSettings
from pipelines.vectors.bm25 import words_of

_QUESTION = "question"
_ENDS_OF_STATEMENTS = (".", "!", "\u2026", "\u3002", "\uff01", "\u0964")
"""Full stops and exclamation marks, also of Chinese, Japanese and Hindi."""


class Asked(NamedTuple):
    """A question, the prompt that asked for it, and its document."""

    question: str
    prompt: str
    document: str
    title: str | None


@dataclass(frozen=True)
class Filters:
    """The filters of the settings. Runs on executors.

    ``knows_languages``: whether the language identifier is there.
    """

    settings: QuestionSettings
    knows_languages: bool

    def reason(self, asked: Asked) -> str | None:
        """Return the name of the first filter that drops a question; None keeps it."""
        found = (name for name, drops in _FILTERS.items() if drops(self, asked))
        return next(found, None)

    @cached_property
    def meta(self) -> re.Pattern[str] | None:
        """The expressions of ``questions.meta_phrases`` as one."""
        phrases = self.settings.meta_phrases
        return re.compile("|".join(f"(?:{one})" for one in phrases), re.I) if phrases else None


def _is_short(filters: Filters, asked: Asked) -> bool:
    return len(asked.question) < filters.settings.min_characters


def _is_long(filters: Filters, asked: Asked) -> bool:
    return len(asked.question) > filters.settings.max_characters


def _is_meta(filters: Filters, asked: Asked) -> bool:
    return filters.meta is not None and filters.meta.search(asked.question) is not None


def _copies_title(filters: Filters, asked: Asked) -> bool:
    bound = filters.settings.title_overlap
    if bound is None or not asked.title:
        return False
    title, question = {*words_of(asked.title)}, {*words_of(asked.question)}
    return bool(title) and len(title & question) >= bound * len(title | question)


def _copies_document(filters: Filters, asked: Asked) -> bool:
    least = filters.settings.copied_words
    words = words_of(asked.question)
    if least is None or len(words) < least:
        return False
    return f" {' '.join(words)} " in f" {' '.join(words_of(asked.document))} "


def _answers(_: Filters, asked: Asked) -> bool:
    # Only this prompt asks for questions; claims and users' own prompts may want statements.
    return asked.prompt == _QUESTION and asked.question.endswith(_ENDS_OF_STATEMENTS)


def _is_foreign(filters: Filters, asked: Asked) -> bool:
    if not (filters.settings.same_language and filters.knows_languages):
        return False
    found = identify(asked.question)
    if found == UNKNOWN:
        return False
    wanted = filters.settings.language or identify(asked.document)
    return wanted not in (UNKNOWN, found)


_FILTERS: Mapping[str, Callable[[Filters, Asked], bool]] = {
    "too short": _is_short,
    "too long": _is_long,
    "about the document": _is_meta,
    "copy of the title": _copies_title,
    "copy of the document": _copies_document,
    "answer": _answers,
    "another language": _is_foreign,
}
REPEATED = "repeated"
NOT_FOUND = "document not found"
REASONS = (*_FILTERS, REPEATED, NOT_FOUND)
"""All reasons to drop a question, in the order of the filters."""


def plain_form(question: str) -> str:
    """Return the words of a question: equal for questions that differ in case and signs only."""
    return " ".join(words_of(question)) or question
