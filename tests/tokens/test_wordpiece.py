import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from pipelines.tokens import wordpiece
from pipelines.tokens.vocabulary import load_tokenizer, save_wordpieces, words_of_batches
from pipelines.tokens.wordpiece import SPECIAL_TOKENS, learn_wordpieces


def library_words():
    text = Path(os.__file__).read_text(encoding="utf-8")
    batch = pa.RecordBatch.from_pydict(
        {"left": text.split("\n"), "right": [None] * (text.count("\n") + 1)}
    )
    (counted,) = words_of_batches(iter([batch]), lowercase=True)
    counts = dict(zip(*(column.to_pylist() for column in counted.columns), strict=True))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


WORDS = library_words()

AGAIN = """
import json, sys
from pipelines.tokens.wordpiece import learn_wordpieces
print(json.dumps(learn_wordpieces(json.load(sys.stdin), 1000)))
"""


def test_words_are_counted_as_bert_splits_them():
    batch = pa.RecordBatch.from_pydict(
        {"left": ["Hé, hé!", None, "日本"], "right": ["x" * 101, "he\x00he", ""]}
    )
    (counted,) = words_of_batches(iter([batch]), lowercase=True)
    assert dict(zip(*(column.to_pylist() for column in counted.columns), strict=True)) == {
        "he": 2,
        ",": 1,
        "!": 1,
        "日": 1,
        "本": 1,
        "hehe": 1,
    }


def test_another_process_learns_the_same():
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    told = json.dumps(WORDS)
    found = subprocess.run(
        [sys.executable, "-c", AGAIN],
        input=told,
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert json.loads(found.stdout) == learn_wordpieces(WORDS, 1000)


def test_it_begins_with_special_tokens_and_ends_with_merged_pieces():
    pieces = learn_wordpieces(WORDS, 1000)
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
    assert len(pieces) == len(set(pieces)) == 1000
    frequent = [word for word in list(WORDS)[:60] if len(word) > 1]
    assert set(frequent) <= set(pieces)


def pieces_used(pieces):
    """Pieces that all the words take together: what a vocabulary is learnt for."""
    model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    return sum(count * len(model.tokenize(word)) for word, count in WORDS.items())


def test_the_words_take_as_many_pieces_as_with_the_library_trainer():
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs.train_from_iterator((" ".join([word] * count) for word, count in WORDS.items()), trainer)
    # Not the same pieces: pairs of equal counts are merged in an order that changes in each run.
    expected = pieces_used(theirs.get_vocab())
    assert pieces_used(learn_wordpieces(WORDS, 1000)) == pytest.approx(expected, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.dictionaries(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9),
        st.integers(1, 10**6),
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


def test_large_counts_are_scaled(monkeypatch):
    monkeypatch.setattr(wordpiece, "MOST_WORDS_FED", 5_000)
    huge = {word: count * 10**9 for word, count in WORDS.items()}
    pieces = learn_wordpieces(huge, 600)
    expected = learn_wordpieces(WORDS, 600)
    assert len(set(pieces) & set(expected)) >= 0.8 * len(expected)


def test_transformers_loads_it_and_gives_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    save_wordpieces(tmp_path, learn_wordpieces(WORDS, 1000), 32, lowercase=True)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert type(loaded).__name__ in ("BertTokenizer", "BertTokenizerFast")
    assert loaded.model_max_length == 32
    texts = ["Return the PATH of a file.", "unbekanntes Wort", "", "日本 \x00 😀"]
    ids = [encoding.ids for encoding in load_tokenizer(tmp_path).encode_batch(texts)]
    assert loaded(texts)["input_ids"] == ids
    counts = Counter(token for row in ids[:1] for token in row)
    assert counts[loaded.unk_token_id] == 0
