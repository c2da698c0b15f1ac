"""Texts of a corpus, as a page may show them."""

from __future__ import annotations

import unicodedata

MAX_CHARACTERS = 200
# They would change the direction of the text around them, or are invisible.
_HIDDEN = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), "\ufeff"} | set(
    map(chr, range(0x2066, 0x206A))
)


def shown(text: str, most: int = MAX_CHARACTERS) -> str:
    """A text on one line, at most so many characters long, with nothing hidden in it.

    Characters that control something, among them those that turn the direction of what follows,
    are written as escapes.
    """
    line = " ".join(text[: 4 * most].split())
    cut = line[:most].rstrip() + "…" if len(line) > most else line
    return "".join(_escaped(character) for character in cut)


def _escaped(character: str) -> str:
    if character in _HIDDEN or unicodedata.category(character) in ("Cc", "Cs"):
        return character.encode("unicode_escape").decode("ascii")
    return character
