"""Learns a WordPiece vocabulary from word counts."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.tokens.learning import SPECIAL_TOKENS, UNKNOWN, lines, usable_words

_PREFIX = "##"


def learn_wordpieces(counts: Mapping[str, int], size: int) -> list[str]:
    """Learns a vocabulary; the same counts give the same vocabulary.

    Pairs are merged by frequency, as the trainer of the library `tokenizers` does it.

    Args:
        counts: Word to count, most frequent first; words as the pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        Pieces by id: special tokens, characters, ``##`` characters, then merged pieces.
    """
    alphabet, usable = usable_words(counts, size)
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
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(lines(usable), trainer)
    pieces: dict[str, int] = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.__getitem__)
