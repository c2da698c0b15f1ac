"""The stage of tokens: pairs and triplets become ids on Spark."""

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

from pipelines.errors import InputError
from pipelines.jobs.prepare import tokenise
from pipelines.models.start import model_length
from pipelines.settings.load import parse
from pipelines.spark import parquet_parts as parts
from pipelines.spark.parquet_parts import find_parts, read_part
from pipelines.tokens.examples import SCHEMA as EXAMPLES
from pipelines.tokens.stage import check_tokens, tokenise_parts
from pipelines.tokens.start import default_start
from pipelines.tokens.vocabulary import vocabulary_size

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
        "anchor": pa.string(),
        "positive": pa.string(),
        "negatives": pa.list_(pa.string()),
        "score": pa.float32(),
        "candidate_scores": pa.list_(pa.float32()),
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


def write_corpus(folder, anchors, positives=None, scores=None, negatives=None):
    count = len(anchors)
    columns = {
        "id": np.arange(count) + 2**40,
        "group": np.arange(count) // 2,
        "anchor": anchors,
        "positive": positives or [None] * count,
        "negatives": negatives or [None] * count,
        "score": scores or [None] * count,
        "candidate_scores": negatives and [[0.5] * (1 + len(texts)) for texts in negatives],
    }
    columns["candidate_scores"] = columns["candidate_scores"] or [None] * count
    path = folder / "corpus" / "pairs.parquet"
    path.mkdir(parents=True)
    table = pa.Table.from_pydict(columns, schema=SCHEMA)
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
    anchors, positives = [*REAL, *NASTY], [*NASTY, *REAL]
    scores = [index / 7 for index in range(len(anchors))]
    write_corpus(tmp_path, anchors, positives, scores)
    summary = tokenise(spark, config(tokens={"max_length": 24}))
    examples = read_examples(tmp_path)
    expected_anchors, expected_positives = library_ids(anchors, 24), library_ids(positives, 24)
    assert ids_of(examples["anchor"]) == expected_anchors
    assert ids_of(examples["positive"]) == expected_positives
    longer = [
        max(len(a), len(b)) for a, b in zip(expected_anchors, expected_positives, strict=True)
    ]
    assert examples["length"].to_pylist() == longer
    assert examples["group"].to_pylist() == [index // 2 for index in range(len(anchors))]
    assert examples["score"].to_pylist() == np.float32(scores).tolist()
    assert examples["negatives"].null_count == len(anchors)
    assert examples.schema.equals(EXAMPLES)
    seen = spark.read.parquet(f"file://{tmp_path}/tokens/examples.parquet")
    assert sorted(row["id"] for row in seen.collect()) == examples["id"].to_pylist()

    whole = [*library_ids(anchors, 10**6), *library_ids(positives, 10**6)]
    assert summary.examples == len(anchors)
    assert summary.tokens == sum(min(len(ids), 24) for ids in whole)
    assert summary.cut == sum(len(ids) > 24 for ids in whole)
    assert summary.vocabulary == 30522
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert manifest == json.loads(json.dumps(vars(summary)))
    assert vocabulary_size(tmp_path / "tokens" / "tokenizer") == 30522
    found = json.loads((tmp_path / "tokens" / "lengths.json").read_text())
    assert found == {"lengths": [list(item) for item in sorted(Counter(longer).items())]}
    assert {path.name for path in (tmp_path / "tokens").iterdir()} == {
        "examples.parquet",
        "lengths.json",
        "manifest.json",
        "tokenizer",
    }


def test_without_a_length_one_example_in_a_hundred_may_be_cut(spark, config, tmp_path) -> None:
    """The ids are those of a run that was told the length, and the manifest says what is lost."""
    short, long = ["a few words of text"] * 396, ["many words " * 80, "more " * 110, "x " * 500]
    anchors = [*short, "some more words " * 8, *long]
    write_corpus(tmp_path, anchors, [*long, *anchors[3:]])
    summary = tokenise(spark, config())
    examples = read_examples(tmp_path)
    # Six of the 400 examples have a long side: two of them are within the share.
    assert summary.max_length == 112
    tokenise(spark, config(tokens={"max_length": 112}))
    told = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert read_examples(tmp_path).equals(examples)
    assert told == json.loads(json.dumps(vars(summary)))
    whole = [len(ids) for ids in library_ids([*anchors, *long, *anchors[3:]], 10**6)]
    assert summary.texts == len(whole) == 800
    assert summary.cut == sum(length > 112 for length in whole)
    assert summary.dropped == sum(max(length - 112, 0) for length in whole)
    dropped = 100 * summary.dropped / sum(whole)
    assert f"truncated, {dropped:.1f} % of the tokens dropped" in str(summary)


def test_each_side_has_its_prompt_before_it(spark, config, tmp_path) -> None:
    anchors, positives, negatives = REAL[:50], REAL[1:51], REAL[60:110]
    write_corpus(tmp_path, anchors, positives, negatives=[[text] for text in negatives])
    prompts = {"query": "query: ", "passage": "passage: "}
    settings = {"encoder": {"prompts": prompts}, "tokens": {"max_length": 32}}
    summary = tokenise(spark, config(**settings))
    assert summary.prompts == {
        "anchor": "query: ",
        "positive": "passage: ",
        "negatives": "passage: ",
    }
    examples = read_examples(tmp_path)
    for name, prompt, texts in (
        ("anchor", "query: ", anchors),
        ("positive", "passage: ", positives),
        ("negatives", "passage: ", negatives),
    ):
        expected = library_ids([prompt + text for text in texts], 32)
        column = examples[name].combine_chunks()
        assert ids_of(column.flatten() if name == "negatives" else column) == expected

    folder = tmp_path / "tokens"
    given = config(**settings)
    check_tokens(folder, given, model_length(given))
    other = {"encoder": {"prompts": {"query": "ask: "}}}
    shorter = settings | {"encoder": {"prompts": prompts, "max_length": 24}, "tokens": {}}
    for tree, problem in ((other, "prepared with the prompts"), (shorter, "the model reads 24")):
        given = config(**tree)
        with pytest.raises(InputError, match=f"^prepared.folder: .*{problem}"):
            check_tokens(folder, given, model_length(given))


@pytest.mark.parametrize("limit", [16, None])
def test_triplets_have_sides_of_negatives(spark, config, tmp_path, monkeypatch, limit):
    # A few long ones, which the length that is found cuts.
    monkeypatch.setattr("pipelines.tokens.summary.WHOLE_SHARE", 0.5)
    anchors, positives, others = REAL[:50], REAL[1:51], (REAL[60:110], NASTY[-1:] * 5 + REAL[:45])
    negatives = list(map(list, zip(*others, strict=True)))
    write_corpus(tmp_path, anchors, positives, negatives=negatives)
    summary = tokenise(spark, config(tokens={"max_length": limit}))
    length = summary.max_length
    assert length == (limit or 40)
    assert summary.negatives == 2
    examples = read_examples(tmp_path)
    sides = [library_ids(texts, length) for texts in (anchors, positives, *others)]
    for name, expected in zip(("anchor", "positive"), sides, strict=False):
        assert ids_of(examples[name]) == expected
    lists = [list(texts) for texts in zip(*sides[2:], strict=True)]
    found = examples["negatives"].to_pylist()
    assert [[np.frombuffer(ids, "<i4").tolist() for ids in texts] for texts in found] == lists
    assert examples["candidate_scores"].to_pylist() == [[0.5] * 3] * 50
    lengths = np.array([[len(ids or []) for ids in side] for side in sides])
    assert examples["length"].to_pylist() == lengths.max(axis=0).tolist()
    assert examples["tokens"].to_pylist() == lengths.sum(axis=0).tolist()
    assert summary.tokens == lengths.sum()


def test_examples_with_fewer_hard_negatives_are_refused(spark, config, tmp_path):
    negatives = [REAL[60:63] for _ in range(50)]
    negatives[7] = negatives[8] = REAL[:2]
    write_corpus(tmp_path, REAL[:50], REAL[1:51], negatives=negatives)
    problem = "2 of 50 examples have fewer than 3 hard negatives"
    with pytest.raises(InputError, match=rf"^corpus\.triplet_columns: {problem}"):
        tokenise(spark, config())
    assert not (tmp_path / "tokens").exists()


def test_the_same_corpus_gives_the_same_bytes_in_any_shares(spark, config, tmp_path, monkeypatch):
    write_corpus(tmp_path, REAL, REAL[::-1])
    summary = tokenise(spark, config())
    first = files_of(tmp_path / "tokens")
    assert {name for name in first if name.startswith("examples")} == {
        f"examples.parquet/part-{number:05d}-00000.parquet"
        for number in range((len(REAL) + 99) // 100)
    }
    assert tokenise(spark, config()) == summary
    assert files_of(tmp_path / "tokens") == first

    monkeypatch.setattr(parts, "PART_BYTES", 1)
    assert tokenise(spark, config()) == summary
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
        (sums,) = tokenise_parts(iter(some), folder=tmp_path, prompts=[{}], max_length=32)
        return sums

    broken = replace(other, path=tmp_path / "nowhere.parquet")
    with pytest.raises(FileNotFoundError):
        attempt(whole, broken)
    assert {path.name for path in (tmp_path / "examples.parquet").iterdir()} == {
        f"{whole.name}.parquet"
    }
    sums = attempt(whole, other)
    first = files_of(tmp_path / "examples.parquet")
    assert len(first) == 2
    assert np.array_equal(attempt(whole, other).texts, sums.texts)
    assert files_of(tmp_path / "examples.parquet") == first
    assert sums.longest.sum() == 150


class TestParts:
    def test_they_hold_every_row_once_in_order(self, tmp_path, monkeypatch):
        write_corpus(tmp_path, REAL)
        folder = tmp_path / "corpus" / "pairs.parquet"
        for size in (1, 2000, 10**9):
            monkeypatch.setattr(parts, "PART_BYTES", size)
            found = find_parts(folder)
            batches = [batch for part in found for batch in read_part(part, ["id", "anchor", "no"])]
            table = pa.Table.from_batches(batches)
            assert table["anchor"].to_pylist() == REAL
            assert table.column_names == ["id", "anchor"]
            assert [part.rows for part in found] == [
                sum(batch.num_rows for batch in read_part(part, ["id"])) for part in found
            ]
            assert len({part.name for part in found}) == len(found)

    def test_batches_of_long_texts_are_small(self, tmp_path, monkeypatch):
        write_corpus(tmp_path, ["x" * 1000 + str(index) for index in range(90)])
        monkeypatch.setattr(parts, "BATCH_BYTES", 20_000)
        (part,) = find_parts(tmp_path / "corpus" / "pairs.parquet")
        rows = [batch.num_rows for batch in read_part(part, ["anchor"])]
        assert sum(rows) == 90
        assert max(rows) <= 20

    def test_files_without_rows_have_none(self, tmp_path):
        write_corpus(tmp_path, [])
        assert find_parts(tmp_path / "corpus" / "pairs.parquet") == []


def test_a_corpus_of_an_earlier_format_is_refused(config, tmp_path):
    folder = tmp_path / "corpus" / "pairs.parquet"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1], "left": ["a"]}), folder / "part.parquet")
    with pytest.raises(InputError, match=r"^prepared\.folder: .* has another format. Run `sent"):
        tokenise(None, config())


def test_single_texts_have_no_positive(spark, config, tmp_path):
    write_corpus(tmp_path, REAL)
    tokenise(spark, config(tokens={"max_length": 64}))
    examples = read_examples(tmp_path)
    assert examples["positive"].null_count == examples["score"].null_count == len(REAL)
    assert examples["length"].to_pylist() == [len(ids) for ids in library_ids(REAL, 64)]


TRAINED = {
    "tokens": {"vocabulary": "train", "vocabulary_size": 400, "max_length": 64},
    "encoder": {"start": "random"},
}


# Each kind of vocabulary has tests of its own, without the stage.
@pytest.mark.parametrize(
    "model",
    ["wordpiece", *(pytest.param(one, marks=pytest.mark.matrix) for one in ("bpe", "unigram"))],
)
def test_a_trained_vocabulary_covers_the_words_and_comes_again(spark, config, tmp_path, model):
    transformers = pytest.importorskip("transformers")
    write_corpus(tmp_path, REAL, REAL[::-1])
    sections = TRAINED | {"tokens": TRAINED["tokens"] | {"model": model}}
    summary = tokenise(spark, config(**sections))
    examples, first = read_examples(tmp_path), files_of(tmp_path / "tokens")
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "tokens/tokenizer"))
    assert loaded(REAL, truncation=True)["input_ids"] == ids_of(examples["anchor"])
    assert summary.vocabulary == len(loaded) <= 400
    assert not any(loaded.unk_token_id in ids for ids in ids_of(examples["anchor"]))
    # Not promised of unigrams.
    if model != "unigram":
        assert tokenise(spark, config(**sections)) == summary
        assert files_of(tmp_path / "tokens") == first


def test_a_folder_with_only_a_word_list_is_enough(spark, config, tmp_path):
    words = tmp_path / "words"
    words.mkdir()
    shutil.copy(default_start() / "vocab.txt", words)
    write_corpus(tmp_path, REAL)
    tokenise(spark, config(tokens={"vocabulary": str(words), "max_length": 64}))
    assert ids_of(read_examples(tmp_path)["anchor"]) == library_ids(REAL, 64)


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
        tokenise(spark, config(**sections))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"corpus"}
