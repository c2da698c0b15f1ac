"""The special tokens that a tokenizer puts around every text."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import NamedTuple

from tokenizers import Tokenizer

_PROBES = 64
"""Entries of a vocabulary that are tried; the first nearly always does."""


class SpecialEnds(NamedTuple):
    """How many special tokens stand around a text.

    Attributes:
        before: [CLS], <s>, <bos>, or none.
        behind: [SEP], </s>, <|endoftext|>, or none.
    """

    before: int
    behind: int


def special_ends(tokenizer: Tokenizer) -> SpecialEnds:
    """How many special tokens a tokenizer puts before and behind a text.

    Raises:
        ValueError: It makes no token of any text.
    """
    for probe in ("a", *islice(tokenizer.get_vocab(), _PROBES)):
        mask = tokenizer.encode(probe).special_tokens_mask
        if not all(mask):
            return SpecialEnds(_leading(mask), _leading(mask[::-1]))
    raise ValueError("it makes no token of any text")


def _leading(mask: list[int]) -> int:
    return len(list(takewhile(bool, mask)))
