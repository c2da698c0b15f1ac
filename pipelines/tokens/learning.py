"""What the three kinds of vocabulary share: special tokens, alphabet, and words as the library
`tokenizers` takes them for training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first entries of a trained vocabulary."""

UNKNOWN = SPECIAL_TOKENS[1]

WORD_START = "▁"
"""Begins the first piece of a word in BPE and unigram vocabularies, as in SentencePiece."""

ALPHABET = 1000
"""At most so many different characters; a word with a rarer one is not learnt from."""

MOST_WORDS_FED = 20_000_000
"""The trainer counts words itself, so each is fed as often as it occurs; above this sum the
counts are scaled down, which keeps the time of it to seconds."""

_WORDS_A_LINE = 1000


def usable_words(counts: Mapping[str, int], size: int) -> tuple[list[str], dict[str, int]]:
    """Chooses the alphabet, and the words that can be written with it.

    Args:
        counts: Word to count.
        size: Entries of the vocabulary; the alphabet takes half of them at most.

    Returns:
        The most frequent characters by code point, and the words without any other.
    """
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(by_frequency[: min(ALPHABET, (size - len(SPECIAL_TOKENS)) // 2)])
    known = set(alphabet)
    return alphabet, {word: count for word, count in counts.items() if known.issuperset(word)}


def with_word_start(counts: Mapping[str, int]) -> dict[str, int]:
    """The words as the pre-tokenizer of BPE and unigram tokenizers marks them."""
    return {WORD_START + word: count for word, count in counts.items()}


def lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, scaled; at least once while that fits."""
    scale = min(1.0, MOST_WORDS_FED / max(sum(counts.values()), 1))
    for word, count in counts.items():
        left = max(round(count * scale), 1)
        while left > 0:
            yield " ".join([word] * min(left, _WORDS_A_LINE))
            left -= _WORDS_A_LINE
