"""Words of real text, counted by the library's own means."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer


def count_plainly(texts, *, lowercase):
    """Counts the words of texts, one text after the other."""
    normalise = BertNormalizer(lowercase=lowercase).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    counts = Counter(
        word for text in texts if text is not None for word, _ in split(normalise(text))
    )
    kept = {word: count for word, count in counts.items() if len(word) <= 100}
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))


@pytest.fixture(scope="session")
def plainly_counted():
    return count_plainly


@pytest.fixture(scope="session")
def words():
    return count_plainly([Path(os.__file__).read_text(encoding="utf-8")], lowercase=True)
