import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pipelines.config import parse
from pipelines.errors import InputError
from pipelines.tokens import parts
from pipelines.tokens.parts import find_parts, read_part
from pipelines.tokens.stage import SCHEMA as EXAMPLES
from pipelines.tokens.stage import prepare_tokens, tokenise_parts
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
        "negative": pa.string(),
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


def write_corpus(folder, lefts, rights=None, scores=None, negatives=None):
    count = len(lefts)
    columns = {
        "id": np.arange(count) + 2**40,
        "group": np.arange(count) // 2,
        "left": lefts,
        "right": rights or [None] * count,
        "score": scores or [None] * count,
    }
    # As older corpora have it, there is no such column where there are no triplets.
    columns |= {} if negatives is None else {"negative": negatives}
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    path = folder / "corpus" / "pairs.parquet"
    path.mkdir(parents=True)
    table = pa.Table.from_pydict(columns, schema=schema)
    for part, first in enumerate(range(0, max(count, 1), 100)):
        rows = table.slice(first, 100)
        pq.write_table(rows, path / f"part-{part}-abcd.parquet", row_group_size=30)
    (path / "_SUCCESS").touch()
    (path / ".part-0.parquet.crc").write_bytes(b"crc")


def read_examples(folder):
    return pq.read_table(folder / "tokens" / "examples.parquet").sort_by("id")


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


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
    assert examples["negative"].null_count == len(lefts)
    assert examples.schema.equals(EXAMPLES)
    seen = spark.read.parquet(f"file://{tmp_path}/tokens/examples.parquet")
    assert sorted(row["id"] for row in seen.collect()) == examples["id"].to_pylist()

    whole = [*library_ids(lefts, 10**6), *library_ids(rights, 10**6)]
    assert summary.examples == len(lefts)
    assert summary.tokens == sum(min(len(ids), 24) for ids in whole)
    assert summary.cut == sum(len(ids) > 24 for ids in whole)
    assert summary.vocabulary == 30522
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert manifest == vars(summary)
    assert vocabulary_size(tmp_path / "tokens" / "tokenizer") == 30522
    found = json.loads((tmp_path / "tokens" / "lengths.json").read_text())
    assert found == {"lengths": [list(item) for item in sorted(Counter(longer).items())]}
    assert {path.name for path in (tmp_path / "tokens").iterdir()} == {
        "examples.parquet",
        "lengths.json",
        "manifest.json",
        "tokenizer",
    }


def test_triplets_have_a_negative_side(spark, config, tmp_path):
    lefts, rights, negatives = REAL[:50], REAL[1:51], [*REAL[60:109], None]
    write_corpus(tmp_path, lefts, rights, negatives=negatives)
    summary = prepare_tokens(spark, config(tokens={"max_length": 16}))
    examples = read_examples(tmp_path)
    sides = [library_ids(texts, 16) for texts in (lefts, rights, negatives[:-1])]
    sides[2].append(None)
    for name, expected in zip(("left", "right", "negative"), sides, strict=True):
        assert ids_of(examples[name]) == expected
    lengths = np.array([[len(ids or []) for ids in side] for side in sides])
    assert examples["length"].to_pylist() == lengths.max(axis=0).tolist()
    assert examples["tokens"].to_pylist() == lengths.sum(axis=0).tolist()
    assert summary.tokens == lengths.sum()


def test_the_same_corpus_gives_the_same_bytes_in_any_shares(spark, config, tmp_path, monkeypatch):
    write_corpus(tmp_path, REAL, REAL[::-1])
    summary = prepare_tokens(spark, config())
    first = files_of(tmp_path / "tokens")
    assert {name for name in first if name.startswith("examples")} == {
        f"examples.parquet/part-{number:05d}-00000.parquet"
        for number in range((len(REAL) + 99) // 100)
    }
    assert prepare_tokens(spark, config()) == summary
    assert files_of(tmp_path / "tokens") == first

    monkeypatch.setattr(parts, "PART_BYTES", 1)
    assert prepare_tokens(spark, config()) == summary
    again = {name for name in files_of(tmp_path / "tokens") if name.startswith("examples")}
    assert len(again) == sum(
        -(-min(100, len(REAL) - first) // 30) for first in range(0, len(REAL), 100)
    )


def test_an_attempt_that_fails_or_comes_twice_does_no_harm(config, tmp_path):
    write_corpus(tmp_path, REAL[:150])
    (tmp_path / "tokenizer").mkdir()
    shutil.copy(default_start() / "vocab.txt", tmp_path / "tokenizer")
    for name in ("attempts", "examples.parquet"):
        (tmp_path / name).mkdir()
    whole, other = find_parts(tmp_path / "corpus" / "pairs.parquet")

    def attempt(*some):
        (sums,) = tokenise_parts(iter(some), folder=str(tmp_path), max_length=32)
        return sums

    broken = replace(other, path=str(tmp_path / "nowhere.parquet"))
    with pytest.raises(FileNotFoundError):
        attempt(whole, broken)
    assert {path.name for path in (tmp_path / "examples.parquet").iterdir()} == {
        f"{whole.name}.parquet"
    }
    sums = attempt(whole, other)
    first = files_of(tmp_path / "examples.parquet")
    assert len(first) == 2
    assert attempt(whole, other).tokens == sums.tokens
    assert files_of(tmp_path / "examples.parquet") == first
    assert sums.examples == sums.lengths.sum() == 150


class TestParts:
    def test_they_hold_every_row_once_in_order(self, tmp_path, monkeypatch):
        write_corpus(tmp_path, REAL)
        folder = tmp_path / "corpus" / "pairs.parquet"
        for size in (1, 2000, 10**9):
            monkeypatch.setattr(parts, "PART_BYTES", size)
            found = find_parts(folder)
            batches = [batch for part in found for batch in read_part(part, ["id", "left", "no"])]
            table = pa.Table.from_batches(batches)
            assert table["left"].to_pylist() == REAL
            assert table.column_names == ["id", "left"]
            assert [part.rows for part in found] == [
                sum(batch.num_rows for batch in read_part(part, ["id"])) for part in found
            ]
            assert len({part.name for part in found}) == len(found)

    def test_batches_of_long_texts_are_small(self, tmp_path, monkeypatch):
        write_corpus(tmp_path, ["x" * 1000 + str(index) for index in range(90)])
        monkeypatch.setattr(parts, "BATCH_BYTES", 20_000)
        (part,) = find_parts(tmp_path / "corpus" / "pairs.parquet")
        rows = [batch.num_rows for batch in read_part(part, ["left"])]
        assert sum(rows) == 90
        assert max(rows) <= 20

    def test_files_without_rows_have_none(self, tmp_path):
        write_corpus(tmp_path, [])
        assert find_parts(tmp_path / "corpus" / "pairs.parquet") == []


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


@pytest.mark.parametrize("model", ["wordpiece", "bpe", "unigram"])
def test_a_trained_vocabulary_covers_the_words(spark, config, tmp_path, model):
    transformers = pytest.importorskip("transformers")
    write_corpus(tmp_path, REAL, REAL[::-1])
    sections = TRAINED | {"tokens": TRAINED["tokens"] | {"model": model}}
    summary = prepare_tokens(spark, config(**sections))
    examples = read_examples(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokens/tokenizer"))
    assert loaded(REAL, truncation=True)["input_ids"] == ids_of(examples["left"])
    assert summary.vocabulary == len(loaded) <= 400
    assert not any(loaded.unk_token_id in ids for ids in ids_of(examples["left"]))


@pytest.mark.parametrize("model", ["wordpiece", "bpe"])
def test_a_trained_vocabulary_is_the_same_again(spark, config, tmp_path, model):
    write_corpus(tmp_path, REAL, REAL[::-1])
    trained = config(**TRAINED | {"tokens": TRAINED["tokens"] | {"model": model}})
    summary = prepare_tokens(spark, trained)
    first = files_of(tmp_path / "tokens")
    assert prepare_tokens(spark, trained) == summary
    assert files_of(tmp_path / "tokens") == first


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
