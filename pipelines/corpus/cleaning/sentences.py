"""Texts cut into sentences by sentencex, in time that grows with the text alone."""

from __future__ import annotations

from collections.abc import Iterator

import sentencex

_WINDOW = 8192
"""Characters that are cut at once. For each sentence end sentencex looks at all quotes and brackets
around it, so that a text of nothing else takes the square of its length."""


def segment(language: str, text: str) -> Iterator[str]:
    """The sentences of a text; put together again they are the text.

    A sentence that is longer than some thousand characters is cut.

    Args:
        language: ISO 639; whose abbreviations do not end a sentence.
        text: Of any length.
    """
    start = 0
    while len(text) - start > _WINDOW:
        # The last sentence may go on behind the window, and begins the next one.
        *whole, last = sentencex.segment(language, text[start : start + _WINDOW])
        yield from whole or [last]
        start += sum(map(len, whole or [last]))
    yield from sentencex.segment(language, text[start:])
