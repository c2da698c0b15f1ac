"""Learns a vocabulary from word counts: WordPiece, byte pairs or unigrams.

The library `tokenizers` trains them; what is decided here is what makes the result the same in
every process, and the alphabet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The first entries of a trained vocabulary."""

UNKNOWN = SPECIAL_TOKENS[1]

WORD_START = "▁"
"""Begins the first piece of a word in BPE and unigram vocabularies, as in SentencePiece."""

ALPHABET = 1000
"""At most so many different characters; a word with a rarer one is not learnt from."""

MAX_WORDS_FED = 20_000_000
"""The trainer counts words itself, so each is fed as often as it occurs; above this sum the
counts are scaled down, which keeps the time of it to seconds."""

_WORDS_A_LINE = 1000
_WORDPIECE_PREFIX = "##"
_UNIGRAM_DECIMALS = 6


def learn_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Learns a vocabulary; the same counts give the same vocabulary.

    Pairs are merged by frequency, as the trainer of the library `tokenizers` does it.

    Args:
        counts: Word to count, most frequent first; words as the pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        Pieces by id: special tokens, characters, ``##`` characters, then merged pieces.
    """
    alphabet, usable = _usable_words(counts, size)
    inner = sorted({character for word in usable for character in word[1:]})
    # Told as special tokens, the characters get their ids in this order; the trainer's own order
    # is that of its hash map, which changes from run to run and decides between equal pairs.
    first = [*SPECIAL_TOKENS, *alphabet, *(_WORDPIECE_PREFIX + character for character in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix=_WORDPIECE_PREFIX,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_lines(usable), trainer)
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)


def learn_bpe(counts: Mapping[str, int], size: int) -> models.BPE:
    """Learns byte pairs and their merges; the same counts give the same ones in every process.

    On characters, not on bytes (Sennrich et al. 2016, arXiv:1508.07909).
    The trainer orders characters by code point and equal pairs by their ids, so nothing is left
    to the order of its hash maps.

    Args:
        counts: Word to count; words as BERT's pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        A model of special tokens, characters and merged pieces, in this order; words begin with
        :data:`WORD_START`.
    """
    alphabet, usable = _usable_words(_with_word_start(counts), size)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_lines(usable), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    merges = [(first, second) for first, second in learnt["merges"]]
    return models.BPE(learnt["vocab"], merges, unk_token=UNKNOWN)


def learn_unigram(counts: Mapping[str, int], size: int) -> models.Unigram:
    """Learns pieces and their log probabilities: a unigram language model (Kudo 2018,
    arXiv:1804.10959).

    The trainer adds up in the order of a hash map, which changes from process to process, so its
    sums differ in the last digits. They are rounded here, and pieces put in the order of what is
    left. That gives the same model in every process unless two pieces at the edge of the
    vocabulary are worth the same up to those digits: one of them may then stand for the other.
    So unlike those of WordPiece and BPE, this vocabulary is not promised to be the same.

    Args:
        counts: Word to count; words as BERT's pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        A model of special tokens, then pieces from the most to the least probable; words begin
        with :data:`WORD_START`.
    """
    alphabet, usable = _usable_words(_with_word_start(counts), size)
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        unk_token=UNKNOWN,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(_lines(usable), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]["vocab"]
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    pieces = [(piece, round(score, _UNIGRAM_DECIMALS)) for piece, score in learnt[len(special) :]]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*special, *pieces], unk_id=SPECIAL_TOKENS.index(UNKNOWN))


def _usable_words(counts: Mapping[str, int], size: int) -> tuple[list[str], dict[str, int]]:
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


def _with_word_start(counts: Mapping[str, int]) -> dict[str, int]:
    """The words as the pre-tokenizer of BPE and unigram tokenizers marks them."""
    return {WORD_START + word: count for word, count in counts.items()}


def _lines(counts: Mapping[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, scaled; at least once while that fits."""
    scale = min(1.0, MAX_WORDS_FED / max(sum(counts.values()), 1))
    for word, count in counts.items():
        rest = max(round(count * scale), 1)
        while rest > 0:
            yield " ".join([word] * min(rest, _WORDS_A_LINE))
            rest -= _WORDS_A_LINE
