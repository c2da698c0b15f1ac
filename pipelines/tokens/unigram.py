"""Learns a unigram language model of word pieces from word counts (Kudo 2018, arXiv:1804.10959)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.tokens.learning import (
    SPECIAL_TOKENS,
    UNKNOWN,
    lines,
    usable_words,
    with_word_start,
)

_DECIMALS = 6


def learn_unigram(counts: Mapping[str, int], size: int) -> models.Unigram:
    """Learns pieces and their log probabilities.

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
        with :data:`~pipelines.tokens.learning.WORD_START`.
    """
    alphabet, usable = usable_words(with_word_start(counts), size)
    trainer = trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        unk_token=UNKNOWN,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(lines(usable), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]["vocab"]
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    pieces = [(piece, round(score, _DECIMALS)) for piece, score in learnt[len(special) :]]
    pieces.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([*special, *pieces], unk_id=SPECIAL_TOKENS.index(UNKNOWN))
