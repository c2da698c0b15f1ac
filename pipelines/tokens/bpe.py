"""Learns a byte-pair-encoding vocabulary from word counts (Sennrich et al. 2016, arXiv:1508.07909;
on characters, not on bytes).
"""

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


def learn_bpe(counts: Mapping[str, int], size: int) -> models.BPE:
    """Learns a vocabulary and its merges; the same counts give the same ones in every process.

    The trainer orders characters by code point and equal pairs by their ids, so nothing is left
    to the order of its hash maps.

    Args:
        counts: Word to count; words as BERT's pre-tokenizer splits them.
        size: Entries, at most: a small corpus may not have as many.

    Returns:
        A model of special tokens, characters and merged pieces, in this order; words begin with
        :data:`~pipelines.tokens.learning.WORD_START`.
    """
    alphabet, usable = usable_words(with_word_start(counts), size)
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
    tokenizer.train_from_iterator(lines(usable), trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    merges = [(left, right) for left, right in learnt["merges"]]
    return models.BPE(learnt["vocab"], merges, unk_token=UNKNOWN)
