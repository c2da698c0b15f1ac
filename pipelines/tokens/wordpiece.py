"""Learns a WordPiece vocabulary from word counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first entries of a trained vocabulary."""

ALPHABET = 1000
"""At most so many different characters; a word with a rarer one becomes [UNK]."""
MOST_WORDS_FED = 20_000_000
"""The trainer counts words itself, so each is fed as often as it occurs; above this sum the
counts are scaled down, which keeps the time of it to seconds."""

_PREFIX = "##"
_WORDS_A_LINE = 1000


def learn_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Learns a vocabulary; the same counts give the same vocabulary.

    Pairs are merged by frequency, as the trainer of the library `tokenizers` does it.

    Args:
        counts: Word to count, most frequent first; words as the pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        Pieces by id: special tokens, characters, ``##`` characters, then merged pieces.
    """
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(by_frequency[: min(ALPHABET, (size - len(SPECIAL_TOKENS)) // 2)])
    known = set(alphabet)
    usable = {word: count for word, count in counts.items() if known.issuperset(word)}

    inner = sorted({character for word in usable for character in word[1:]})
    # Told as special tokens, the characters get their ids in this order; the trainer's own order
    # is that of its hash map, which changes from run to run and decides between equal pairs.
    first = [*SPECIAL_TOKENS, *alphabet, *(_PREFIX + character for character in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_PREFIX,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_lines(usable), trainer)
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)


def _lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, scaled; at least once while that fits."""
    scale = min(1.0, MOST_WORDS_FED / max(sum(counts.values()), 1))
    for word, count in counts.items():
        left = max(round(count * scale), 1)
        while left > 0:
            yield " ".join([word] * min(left, _WORDS_A_LINE))
            left -= _WORDS_A_LINE
