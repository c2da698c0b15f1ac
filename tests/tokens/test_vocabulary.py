"""Words are counted as the library splits them, and vocabularies learnt from the counts."""

import inspect
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import write_encoder
from pipelines.models.weights import random_weights
from pipelines.spark.frames import Scratch
from pipelines.spark.parquet_parts import find_parts
from pipelines.tokens import examples as counting
from pipelines.tokens import vocabulary as learning
from pipelines.tokens.examples import count_words, words_of_columns
from pipelines.tokens.vocabulary import (
    SPECIAL_TOKENS,
    learn_bpe,
    learn_unigram,
    learn_wordpieces,
    load_tokenizer,
    save_subwords,
    save_wordpieces,
)

TEXTS = st.lists(
    st.none() | st.text(max_size=40) | st.text(st.sampled_from("aZé 日,\t\x00\u3000"), max_size=30)
)


def count_plainly(texts, *, lowercase):
    """Counts the words of texts, one text after the other."""
    normalise = BertNormalizer(lowercase=lowercase).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    counts = Counter(
        word for text in texts if text is not None for word, _ in split(normalise(text))
    )
    kept = {word: count for word, count in counts.items() if len(word) <= 100}
    return dict(sorted(kept.items(), key=lambda item: (-item[1], item[0])))


def merged(batches):
    counts = Counter()
    for batch in batches:
        for word, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            counts[word] += count
    return counts


@given(columns=st.lists(TEXTS, max_size=3), lowercase=st.booleans())
def test_words_are_counted_as_the_library_splits_them(columns, lowercase):
    arrays = (pa.array(column, pa.string()) for column in columns)
    texts = [text for column in columns for text in column]
    found = merged(words_of_columns(arrays, lowercase=lowercase))
    assert found == count_plainly(texts, lowercase=lowercase)


def test_a_task_that_meets_many_chunks_hands_them_on(monkeypatch):
    texts = [f"word{index % 70} and word{index % 50}" for index in range(300)]
    monkeypatch.setattr(counting, "MAX_CHUNKS", 40)
    columns = (pa.array(texts[first : first + 30]) for first in range(0, 300, 30))
    batches = list(words_of_columns(columns, lowercase=True))
    assert len(batches) > 1
    assert merged(batches) == count_plainly(texts, lowercase=True)


def test_very_long_words_are_left_out():
    (batch,) = words_of_columns(iter([pa.array(["x" * 100 + " " + "x" * 101])]), lowercase=True)
    assert batch.column("word").to_pylist() == ["x" * 100]


def test_the_most_frequent_words_of_all_parts_come_to_the_driver(spark, tmp_path, monkeypatch):
    texts = [f"{'common ' * 9}word{index % 20} Word{index % 7}" for index in range(90)]
    for part in range(3):
        mine = texts[part::3]
        columns = {"id": range(30), "anchor": mine, "positive": pa.array(mine[:5] + [None] * 25)}
        pq.write_table(pa.table(columns), tmp_path / f"part-{part}.parquet")
    both = texts + [text for part in range(3) for text in texts[part::3][:5]]
    expected = count_plainly(both, lowercase=True)
    for most in (counting.MAX_WORDS, 1, 5, 10):
        monkeypatch.setattr(counting, "MAX_WORDS", most)
        with Scratch(tmp_path / "scratch") as scratch:
            found = count_words(spark, find_parts(tmp_path), scratch, lowercase=True)
        assert 1 <= len(found) <= most
        assert list(found.items()) == list(expected.items())[: len(found)]
        # Words that occur as often as one another stay together.
        behind = list(expected.values())[len(found) :]
        assert len(found) == len(expected) or min(found.values()) > behind[0]


def save(folder, model, counts, size, *, lowercase=True):
    """Learns a vocabulary and saves it; gives its tokenizer and what begins a word in it."""
    if model == "wordpiece":
        save_wordpieces(folder, learn_wordpieces(counts, size), 32, lowercase=lowercase)
    else:
        learn = learn_bpe if model == "bpe" else learn_unigram
        save_subwords(folder, learn(counts, size), 32, lowercase=lowercase)
    return load_tokenizer(folder), "" if model == "wordpiece" else "▁"


AGAIN = f"""
import json, sys
from pathlib import Path
from pipelines.tokens.vocabulary import (
    learn_bpe, learn_unigram, learn_wordpieces, load_tokenizer, save_subwords, save_wordpieces
)
{inspect.getsource(save)}
save(Path(sys.argv[1]), sys.argv[2], json.load(sys.stdin), 1000)
"""
each_model = pytest.mark.parametrize("model", ["wordpiece", "bpe", "unigram"])


@pytest.fixture(scope="module")
def words():
    return count_plainly([Path(os.__file__).read_text(encoding="utf-8")], lowercase=True)


def pieces_of(tokenizer):
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.mark.parametrize("model", ["wordpiece", "bpe"])
def test_another_process_learns_the_same(words, tmp_path, model):
    save(tmp_path, model, words, 1000)
    first = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").unlink()
    subprocess.run(
        [sys.executable, "-c", AGAIN, str(tmp_path), model],
        input=json.dumps(words),
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "77"},
    )
    assert (tmp_path / "tokenizer.json").read_bytes() == first


def test_most_of_a_unigram_vocabulary_is_learnt_again(words, tmp_path):
    # All of it unless pieces at its edge are worth the same, which is not promised.
    first, second = (set(pieces_of(save(tmp_path, "unigram", words, 1000)[0])) for _ in range(2))
    assert len(first & second) >= 0.98 * len(first)


@each_model
def test_it_begins_with_special_tokens_and_writes_words_in_few_pieces(model, words, tmp_path):
    tokenizer, start = save(tmp_path, model, words, 600)
    pieces = pieces_of(tokenizer)
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
    assert len(pieces) == len(set(pieces)) == 600
    characters = sum(count * len(start + word) for word, count in words.items())
    written = sum(
        count * len(tokenizer.model.tokenize(start + word)) for word, count in words.items()
    )
    assert written < characters / 2


def test_the_words_take_as_many_pieces_as_with_the_library_trainer(words):
    def pieces_used(pieces):
        """Pieces that all the words take together: what a vocabulary is learnt for."""
        model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
        return sum(count * len(model.tokenize(word)) for word, count in words.items())

    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs.train_from_iterator((" ".join([word] * count) for word, count in words.items()), trainer)
    ours = learn_wordpieces(words, 1000)
    assert {word for word in list(words)[:60] if len(word) > 1} <= set(ours)
    # Not the same pieces: pairs of equal counts are merged in an order that changes in each run.
    assert pieces_used(ours) == pytest.approx(pieces_used(theirs.get_vocab()), rel=0.02)


@each_model
@settings(max_examples=20, deadline=None)
@given(
    counts=st.dictionaries(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9),
        st.integers(1, 1000),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(100, 400),
)
def test_any_words_are_covered_within_the_size(model, counts, size, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer, start = save(folder, model, counts, size, lowercase=False)
    pieces = pieces_of(tokenizer)
    assert len(pieces) == len(set(pieces)) <= size
    known = set(pieces)
    for word in (start + word for word in counts):
        inner = {f"##{character}" for character in word} if model == "wordpiece" else set()
        if known.issuperset({*word, *inner}):
            found = [token.value.removeprefix("##") for token in tokenizer.model.tokenize(word)]
            assert "".join(found) == word


@each_model
def test_large_counts_are_scaled(model, monkeypatch, words, tmp_path):
    expected = {*pieces_of(save(tmp_path, model, words, 600)[0])}
    monkeypatch.setattr(learning, "MAX_WORDS_FED", 5_000)
    huge = {word: count * 10**9 for word, count in words.items()}
    found = pieces_of(save(tmp_path, model, huge, 600)[0])
    assert tuple(found[:5]) == SPECIAL_TOKENS
    assert model == "unigram" or len(expected.intersection(found)) >= 0.7 * len(expected)


@each_model
def test_transformers_loads_it_and_gives_the_same_ids(model, words, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer, _ = save(tmp_path, model, words, 1000)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.is_fast
    assert type(loaded).__name__.startswith("BertTokenizer") == (model == "wordpiece")
    assert loaded.model_max_length == 32
    assert loaded.all_special_tokens and loaded.pad_token_id == 0
    texts = ["Return the PATH of a file.", "unbekanntes Wort", "", "日本 \x00 😀", "[SEP] x" * 40]
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert loaded(texts)["input_ids"] == expected
    assert expected[0][0] == loaded.cls_token_id == SPECIAL_TOKENS.index("[CLS]")
    assert expected[0][-1] == loaded.sep_token_id == SPECIAL_TOKENS.index("[SEP]")
    assert loaded.unk_token_id not in expected[0]
    if model != "wordpiece":
        assert loaded.decode(expected[0], skip_special_tokens=True) == "return the path of a file ."


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_sentence_transformers_loads_a_model_with_it(model, words, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (tmp_path / "tokenizer").mkdir()
    tokenizer, _ = save(tmp_path / "tokenizer", model, words, 400)
    spec = BertSpec(
        vocabulary=len(pieces_of(tokenizer)), layers=1, hidden=16, heads=2, intermediate=32
    )
    write_encoder(
        tmp_path / "model", spec, random_weights(spec, 5), tmp_path / "tokenizer", "# Small\n"
    )
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = ["Return the PATH of a file.", "Ein Wort, 日本!"]
    features = loaded.tokenize(texts)
    rows = zip(features["input_ids"].tolist(), features["attention_mask"].tolist(), strict=True)
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert [ids[: sum(mask)] for ids, mask in rows] == expected
    assert loaded.encode(texts).shape == (2, 16)
