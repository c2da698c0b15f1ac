"""The ids of a vocabulary that are no words; plain values, which travel to workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """What of a vocabulary stands for no part of a text.

    Attributes:
        special: All such ids: of the ends of texts, of padding, of what is unknown.
        mask: The one in the place of a word that is to be found, if there is one.
        vocabulary: Rows of a word embedding for all ids.
    """

    special: tuple[int, ...]
    mask: int | None
    vocabulary: int
