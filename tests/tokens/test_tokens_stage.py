import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pipelines.config import parse
from pipelines.errors import InputError
from pipelines.tokens.stage import prepare_tokens, token_column
from pipelines.tokens.start import default_start
from pipelines.tokens.vocabulary import load_tokenizer, vocabulary_size

NASTY = [
    "",
    " \t\n",
    "emoji 😀 and 👩‍👩‍👧‍👦 joined",
    "control \x00\x07\u200b\ufeff characters \ufffd",
    "日本語のテキスト と 漢字",
    "naïve Ångström İstanbul ß",
    "[CLS] [SEP] [MASK] written out",
    "x" * 5000,
    "many words " * 700,
]
REAL = [line.strip() for line in Path(json.__file__).read_text().split("\n") if line.strip()]
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "group": pa.int64(),
        "left": pa.string(),
        "right": pa.string(),
        "score": pa.float32(),
    }
)


def library_ids(texts, max_length):
    tokenizer = Tokenizer.from_file(str(default_start() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def ids_of(column):
    return [
        None if value is None else np.frombuffer(value, "<i4").tolist()
        for value in column.to_pylist()
    ]


@pytest.fixture
def config(tmp_path):
    def make(**sections):
        return parse({"prepared": {"folder": str(tmp_path)}, **sections})

    return make


def write_corpus(folder, lefts, rights=None, scores=None):
    count = len(lefts)
    columns = [
        np.arange(count) + 2**40,
        np.arange(count) // 2,
        lefts,
        rights or [None] * count,
        scores or [None] * count,
    ]
    arrays = [pa.array(value, field.type) for value, field in zip(columns, SCHEMA, strict=True)]
    path = folder / "corpus" / "pairs.parquet"
    path.mkdir(parents=True)
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path / "part-0.parquet")


def read_examples(folder):
    return pq.read_table(folder / "tokens" / "examples.parquet").sort_by("id")


class TestColumn:
    tokenizer = load_tokenizer(default_start())

    @settings(max_examples=50, deadline=None)
    @given(
        texts=st.lists(st.none() | st.text(max_size=60) | st.sampled_from(NASTY), max_size=12),
        max_length=st.integers(8, 40),
    )
    def test_ids_are_those_of_the_library(self, texts, max_length):
        column, lengths, cut = token_column(
            pa.array(texts, pa.string()), self.tokenizer, max_length
        )
        column.validate(full=True)
        present = [text for text in texts if text is not None]
        expected = iter(library_ids(present, max_length))
        whole = iter(library_ids(present, 10**6))
        for text, ids, length, was_cut in zip(texts, ids_of(column), lengths, cut, strict=True):
            if text is None:
                assert (ids, length, was_cut) == (None, 0, False)
                continue
            assert ids == next(expected)
            assert length == len(ids)
            assert was_cut == (len(next(whole)) > max_length)

    def test_a_cut_text_keeps_its_ends(self):
        column, lengths, cut = token_column(pa.array(NASTY[-1:]), self.tokenizer, 9)
        (ids,) = ids_of(column)
        assert (ids[0], ids[-1]) == (101, 102)
        assert lengths.tolist() == [9]
        assert cut.tolist() == [True]

    def test_a_slice_of_a_column_is_read_from_its_own_place(self):
        texts = pa.array(["one", None, "two words", "three"])[1:3]
        column, _, _ = token_column(texts, self.tokenizer, 16)
        assert ids_of(column) == [None, library_ids(["two words"], 16)[0]]


def test_pairs_become_ids(spark, config, tmp_path):
    lefts, rights = [*REAL, *NASTY], [*NASTY, *REAL]
    scores = [index / 7 for index in range(len(lefts))]
    write_corpus(tmp_path, lefts, rights, scores)
    summary = prepare_tokens(spark, config(tokens={"max_length": 24}))
    examples = read_examples(tmp_path)
    expected_left, expected_right = library_ids(lefts, 24), library_ids(rights, 24)
    assert ids_of(examples["left"]) == expected_left
    assert ids_of(examples["right"]) == expected_right
    longer = [max(len(a), len(b)) for a, b in zip(expected_left, expected_right, strict=True)]
    assert examples["length"].to_pylist() == longer
    assert examples["group"].to_pylist() == [index // 2 for index in range(len(lefts))]
    assert examples["score"].to_pylist() == np.float32(scores).tolist()
    kinds = [
        examples.schema.field(name).type for name in ("id", "group", "length", "left", "score")
    ]
    assert kinds == [pa.int64(), pa.int64(), pa.int32(), pa.binary(), pa.float32()]

    whole = [*library_ids(lefts, 10**6), *library_ids(rights, 10**6)]
    assert summary.examples == len(lefts)
    assert summary.tokens == sum(min(len(ids), 24) for ids in whole)
    assert summary.cut == sum(len(ids) > 24 for ids in whole)
    assert summary.vocabulary == 30522
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert manifest == vars(summary)
    assert vocabulary_size(tmp_path / "tokens" / "tokenizer") == 30522


def test_single_texts_have_no_right_side(spark, config, tmp_path):
    write_corpus(tmp_path, REAL)
    prepare_tokens(spark, config())
    examples = read_examples(tmp_path)
    assert examples["right"].null_count == examples["score"].null_count == len(REAL)
    assert examples["length"].to_pylist() == [len(ids) for ids in library_ids(REAL, 64)]


TRAINED = {
    "tokens": {"vocabulary": "train", "vocabulary_size": 400},
    "encoder": {"start": "random"},
}


def test_a_trained_vocabulary_is_the_same_again_and_covers_the_words(spark, config, tmp_path):
    transformers = pytest.importorskip("transformers")
    write_corpus(tmp_path, REAL, REAL[::-1])
    trained = config(**TRAINED)
    summary = prepare_tokens(spark, trained)
    first = {path.name: path.read_bytes() for path in (tmp_path / "tokens/tokenizer").iterdir()}
    assert set(first) == {
        "tokenizer.json",
        "vocab.txt",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }
    examples = read_examples(tmp_path)
    assert prepare_tokens(spark, trained) == summary
    again = {path.name: path.read_bytes() for path in (tmp_path / "tokens/tokenizer").iterdir()}
    assert again == first
    assert read_examples(tmp_path).equals(examples)

    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokens/tokenizer"))
    assert loaded(REAL, truncation=True)["input_ids"] == ids_of(examples["left"])
    assert summary.vocabulary == len(loaded) == 400
    unknown = sum(ids.count(loaded.unk_token_id) for ids in ids_of(examples["left"]))
    assert unknown == 0


def test_a_folder_with_only_a_word_list_is_enough(spark, config, tmp_path):
    words = tmp_path / "words"
    words.mkdir()
    shutil.copy(default_start() / "vocab.txt", words)
    write_corpus(tmp_path, REAL)
    prepare_tokens(spark, config(tokens={"vocabulary": str(words)}))
    assert ids_of(read_examples(tmp_path)["left"]) == library_ids(REAL, 64)


@pytest.mark.parametrize(
    ("texts", "sections", "key"),
    [
        (None, {}, "prepared.folder"),
        ([], {}, "prepared.folder"),
        (REAL, {"tokens": {"vocabulary": "/no/such/folder"}}, "tokens.vocabulary"),
        (REAL, {"tokens": {"vocabulary": "train"}}, "tokens.vocabulary"),
        (REAL, {"encoder": {"start": "/no/such/folder"}}, "encoder.start"),
    ],
)
def test_what_cannot_be_tokenised_is_refused_and_leaves_nothing(
    spark, config, tmp_path, texts, sections, key
):
    if texts is not None:
        write_corpus(tmp_path, texts)
    with pytest.raises(InputError) as caught:
        prepare_tokens(spark, config(**sections))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus"}


def test_a_tokenizer_without_special_tokens_is_refused(spark, config, tmp_path):
    bare = load_tokenizer(default_start())
    bare.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    (tmp_path / "bare").mkdir()
    bare.save(str(tmp_path / "bare" / "tokenizer.json"))
    write_corpus(tmp_path, REAL)
    with pytest.raises(InputError, match="CLS"):
        prepare_tokens(spark, config(tokens={"vocabulary": str(tmp_path / "bare")}))
