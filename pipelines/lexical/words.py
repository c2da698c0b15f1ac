"""The words of a text as BM25 counts them: the same for documents and for queries, in any language.

Of scripts that set blanks between words, a word is a run of letters, digits and the marks on them,
in Unicode's form for comparing (NFKC, then case folded), without an s at its end: plurals of
English, French and Spanish meet their singulars, and nothing else is cut, since the language of a
text is not known. There is no stop list: the weight of BM25 makes frequent words count little.

Of scripts that set none, and of Korean, which attaches particles to words, the characters and the
overlapping pairs of them stand for words, since segmenting would need a dictionary for each
language: pairs tell words apart, and single characters find words of one character. Sources: Nie,
Gao, Zhang and Zhou, "On the use of words and n-grams for Chinese information retrieval", IRAL 2000;
McNamee and Mayfield, "Character n-gram tokenization for European language text retrieval",
Information Retrieval 7, 2004; for Chinese, Japanese and Korean, Lucene's ``CJKBigramFilter``.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

_WITHOUT_BLANKS = (
    "\u0e00-\u0e7f"  # Thai
    "\u0e80-\u0eff"  # Lao
    "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar
    "\u1780-\u17ff"  # Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana and Katakana
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Han
    "\u3100-\u312f\u31a0-\u31bf"  # Bopomofo
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff"  # Hangul
)
_PARTS = re.compile(f"([{_WITHOUT_BLANKS}]+)|[^{_WITHOUT_BLANKS}]+")
_ASCII_RUN = re.compile("[A-Za-z0-9]+")
_LEAST_PLURAL = 4
"""Characters of a word that may lose its s: `is`, `as` and `gas` are no plurals."""


def words_of(text: str) -> list[str]:
    """The words of a text in their order, each as often as it is there."""
    # Names of variables are words with underscores between them.
    if text.isascii():
        return [_singular(run) for run in _ASCII_RUN.findall(text.lower())]
    folded = unicodedata.normalize("NFKC", text).casefold().replace("_", " ")
    return [word for run in _run().findall(folded) for word in _words_of_run(run)]


def _words_of_run(run: str) -> Iterator[str]:
    """The words of letters, digits and marks that nothing separates."""
    for found in _PARTS.finditer(run):
        part = found[0]
        if found[1] is None:
            yield _singular(part)
        else:
            yield from part
            yield from map("".join, pairwise(part))


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) >= _LEAST_PLURAL else word


@cache
def _run() -> re.Pattern[str]:
    r"""Letters, digits and marks: ``\w`` alone would cut words of Hindi at their vowels."""
    marks = [
        character
        for character in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(character).startswith("M")
    ]
    return re.compile(rf"[\w{''.join(marks)}]+")
