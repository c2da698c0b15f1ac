"""WordPiece vocabularies are learnt from counted words."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.tokens import vocabulary as vocabulary_learning
from pipelines.tokens.vocabulary import (
    SPECIAL_TOKENS,
    learn_wordpieces,
    load_tokenizer,
    save_wordpieces,
)

AGAIN = """
import json, sys
from pipelines.tokens.vocabulary import learn_wordpieces
print(json.dumps(learn_wordpieces(json.load(sys.stdin), 1000)))
"""


def test_another_process_learns_the_same(words):
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    told = json.dumps(words)
    found = subprocess.run(
        [sys.executable, "-c", AGAIN],
        input=told,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert json.loads(found.stdout) == learn_wordpieces(words, 1000)


def test_it_begins_with_special_tokens_and_ends_with_merged_pieces(words):
    pieces = learn_wordpieces(words, 1000)
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
    assert len(pieces) == len(set(pieces)) == 1000
    frequent = [word for word in list(words)[:60] if len(word) > 1]
    assert set(frequent) <= set(pieces)


def pieces_used(pieces, words):
    """Pieces that all the words take together: what a vocabulary is learnt for."""
    model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    return sum(count * len(model.tokenize(word)) for word, count in words.items())


def test_the_words_take_as_many_pieces_as_with_the_library_trainer(words):
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    # Not the same pieces: pairs of equal counts are merged in an order that changes in each run.
    expected = pieces_used(theirs.get_vocab(), words)
    assert pieces_used(learn_wordpieces(words, 1000), words) == pytest.approx(expected, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.dictionaries(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9),
        st.integers(1, 1000),
        max_size=30,
    ),
    size=st.integers(100, 400),
)
def test_any_words_are_covered_within_the_size(counts, size, tmp_path_factory):
    pieces = learn_wordpieces(counts, size)
    assert len(pieces) == len(set(pieces)) <= size
    folder = tmp_path_factory.mktemp("tokenizer")
    save_wordpieces(folder, pieces, 64, lowercase=False)
    tokenizer = load_tokenizer(folder)
    known = set(pieces)
    for word in counts:
        if known.issuperset(word) and all(f"##{character}" in known for character in word):
            found = [token.value.removeprefix("##") for token in tokenizer.model.tokenize(word)]
            assert "".join(found) == word


def test_large_counts_are_scaled(monkeypatch, words):
    monkeypatch.setattr(vocabulary_learning, "MAX_WORDS_FED", 5_000)
    huge = {word: count * 10**9 for word, count in words.items()}
    pieces = learn_wordpieces(huge, 600)
    expected = learn_wordpieces(words, 600)
    assert len(set(pieces) & set(expected)) >= 0.8 * len(expected)


def test_transformers_loads_it_and_gives_the_same_ids(tmp_path, words):
    transformers = pytest.importorskip("transformers")
    save_wordpieces(tmp_path, learn_wordpieces(words, 1000), 32, lowercase=True)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(loaded).__name__ in ("BertTokenizer", "BertTokenizerFast")
    assert loaded.model_max_length == 32
    texts = ["Return the PATH of a file.", "unbekanntes Wort", "", "日本 \x00 😀"]
    ids = [encoding.ids for encoding in load_tokenizer(tmp_path).encode_batch(texts)]
    assert loaded(texts)["input_ids"] == ids
    assert loaded.unk_token_id not in ids[0]
