"""BPE and unigram vocabularies are learnt from counted words."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.models.bert.spec import BertSpec
from pipelines.models.folder import write_encoder
from pipelines.models.weights import random_weights
from pipelines.tokens import vocabulary as vocabulary_learning
from pipelines.tokens.vocabulary import (
    SPECIAL_TOKENS,
    learn_bpe,
    learn_unigram,
    load_tokenizer,
    save_subwords,
)

LEARNERS = {"bpe": learn_bpe, "unigram": learn_unigram}
AGAIN = """
import json, sys
from pathlib import Path
from pipelines.tokens.vocabulary import learn_bpe
from pipelines.tokens.vocabulary import save_subwords
save_subwords(Path(sys.argv[1]), learn_bpe(json.load(sys.stdin), 1000), 64, lowercase=True)
"""


each_learner = pytest.mark.parametrize("learn", LEARNERS.values(), ids=LEARNERS)


def saved(folder, model):
    folder.mkdir(exist_ok=True)
    save_subwords(folder, model, 32, lowercase=True)
    return load_tokenizer(folder)


def pieces_of(tokenizer):
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def test_another_process_learns_the_same_merges(words, tmp_path):
    for name, environment in (("first", {}), ("second", {"PYTHONHASHSEED": "77"})):
        (tmp_path / name).mkdir()
        subprocess.run(
            [sys.executable, "-c", AGAIN, str(tmp_path / name)],
            input=json.dumps(words),
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
    first, second = (tmp_path / name / "tokenizer.json" for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_most_of_a_unigram_vocabulary_is_learnt_again(words, tmp_path):
    # All of it unless pieces at its edge are worth the same, which is not promised.
    first, second = (
        set(pieces_of(saved(tmp_path / name, learn_unigram(words, 1000)))) for name in "ab"
    )
    assert len(first & second) >= 0.98 * len(first)


@each_learner
def test_it_begins_with_special_tokens_and_writes_words_in_few_pieces(learn, words, tmp_path):
    tokenizer = saved(tmp_path, learn(words, 600))
    pieces = pieces_of(tokenizer)
    assert tuple(pieces[:5]) == SPECIAL_TOKENS
    assert len(pieces) == 600
    characters = sum(count * len(f"▁{word}") for word, count in words.items())
    written = sum(
        count * len(tokenizer.model.tokenize(f"▁{word}")) for word, count in words.items()
    )
    assert written < characters / 2


@each_learner
@settings(max_examples=20)
@given(
    counts=st.dictionaries(
        st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=9),
        st.integers(1, 1000),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(100, 400),
)
def test_any_words_are_covered_within_the_size(learn, counts, size, tmp_path_factory):
    tokenizer = saved(tmp_path_factory.mktemp("tokenizer"), learn(counts, size))
    pieces = set(pieces_of(tokenizer))
    assert len(pieces) <= size
    for word in counts:
        if pieces.issuperset(f"▁{word}"):
            found = [token.value for token in tokenizer.model.tokenize(f"▁{word}")]
            assert "".join(found) == f"▁{word}"


@each_learner
def test_large_counts_are_scaled(learn, monkeypatch, words, tmp_path):
    monkeypatch.setattr(vocabulary_learning, "MAX_WORDS_FED", 5_000)
    huge = {word: count * 10**9 for word, count in words.items()}
    assert pieces_of(saved(tmp_path, learn(huge, 600)))[:5] == list(SPECIAL_TOKENS)


@each_learner
def test_transformers_loads_it_and_gives_the_same_ids(learn, words, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = saved(tmp_path, learn(words, 1000))
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.is_fast
    assert loaded.model_max_length == 32
    assert loaded.all_special_tokens and loaded.pad_token_id == 0
    texts = ["Return the PATH of a file.", "unbekanntes Wort", "", "日本 \x00 😀", "[SEP] x" * 40]
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert loaded(texts)["input_ids"] == expected
    assert expected[0][0] == loaded.cls_token_id == SPECIAL_TOKENS.index("[CLS]")
    assert expected[0][-1] == loaded.sep_token_id == SPECIAL_TOKENS.index("[SEP]")
    assert loaded.unk_token_id not in expected[0]
    assert loaded.decode(expected[0], skip_special_tokens=True) == "return the path of a file ."


@each_learner
def test_sentence_transformers_loads_a_model_with_it(learn, words, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    (tmp_path / "tokenizer").mkdir()
    tokenizer = saved(tmp_path / "tokenizer", learn(words, 400))
    spec = BertSpec(
        vocabulary=len(pieces_of(tokenizer)), layers=1, hidden=16, heads=2, intermediate=32
    )
    write_encoder(
        tmp_path / "model", spec, random_weights(spec, 5), tmp_path / "tokenizer", "# Small\n"
    )
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = ["Return the PATH of a file.", "Ein Wort, 日本!"]
    features = model.tokenize(texts)
    rows = [
        ids[: sum(mask)]
        for ids, mask in zip(
            features["input_ids"].tolist(), features["attention_mask"].tolist(), strict=True
        )
    ]
    assert rows == [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert model.encode(texts).shape == (2, 16)
