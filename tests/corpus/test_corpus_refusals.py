"""What the corpus stage refuses, and in which words."""

import gzip
import json

import pyarrow as pa
import pytest
from corpus_runs import prepared, sentence, write_parquet

from pipelines.errors import InputError


def broken_jsonl(folder):
    lines = [json.dumps({"text": sentence(n)}) for n in range(50)]
    (folder / "a.jsonl").write_text("\n".join([*lines, '{"text": "cut of', "[1]", *lines]))
    return {"format": "jsonl", "pairs": "single"}


def first_line_broken(folder):
    (folder / "a.json").write_text('[\n{"text": "a"}\n]')
    return {"format": "jsonl", "pairs": "single"}


def nested_jsonl(folder):
    (folder / "a.jsonl").write_text('{"text": ["a", "b"]}')
    return {"format": "jsonl", "pairs": "single"}


def missing_jsonl_column(folder):
    (folder / "a.jsonl").write_text('{"title": "a", "body": "b"}')
    return {"format": "jsonl", "pairs": "single"}


def missing_csv_column(folder):
    (folder / "a.csv").write_text("text,other\na,b\n")
    (folder / "b.csv").write_text("title,other\na,b\n")
    return {"format": "csv", "pairs": "single"}


def missing_parquet_columns(folder):
    write_parquet(folder / "a.parquet", sentence1=["a"], other=["b"])
    return {"format": "parquet", "pairs": "columns"}


def missing_group_column(folder):
    write_parquet(folder / "a.parquet", text=["a"])
    return {"format": "parquet", "pairs": "group", "group_column": "image"}


def missing_score_column(folder):
    write_parquet(folder / "a.parquet", sentence1=["a"], sentence2=["b"])
    return {"format": "parquet", "pairs": "columns", "score_column": "score"}


def list_column(folder):
    write_parquet(folder / "a.parquet", text=[["a"], ["b"]])
    return {"format": "parquet", "pairs": "single"}


def text_named_parquet(folder):
    (folder / "a.parquet").write_text("just text")
    return {"format": "parquet", "pairs": "single"}


def truncated_gzip(folder):
    packed = gzip.compress("\n".join(map(sentence, range(20))).encode())
    (folder / "a.txt.gz").write_bytes(packed[:-12])
    return {"format": "text", "pairs": "single"}


def pairs_that_text_cannot_give(folder):
    (folder / "a.txt").write_text("text")
    return {"format": "text", "pairs": "columns"}


def scores_of_a_group(folder):
    write_parquet(folder / "a.parquet", text=["a"], image=[1], score=[1.0])
    return {
        "format": "parquet",
        "pairs": "group",
        "group_column": "image",
        "score_column": "score",
    }


def empty_range(folder):
    return {**missing_score_column(folder), "score_range": [5, 0]}


def exclude_without_columns(folder):
    write_parquet(folder / "a.parquet", text=[sentence(1)])
    (folder / "exclude").mkdir()
    path = write_parquet(folder / "exclude" / "b.parquet", title=["a"])
    return {
        "inputs": [str(folder / "a.parquet")],
        "format": "parquet",
        "pairs": "single",
        "exclude": [path],
    }


def exclude_that_is_missing(folder):
    write_parquet(folder / "a.parquet", text=[sentence(1)])
    return {"format": "parquet", "pairs": "single", "exclude": [str(folder / "none.parquet")]}


def all_too_short(folder):
    write_parquet(folder / "a.parquet", text=["ab", "cd", None])
    return {"format": "parquet", "pairs": "single"}


def nothing_in_it(folder):
    write_parquet(folder / "a.parquet", text=pa.array([], pa.string()))
    return {"format": "parquet", "pairs": "single"}


def docstrings_in_groups(folder):
    (folder / "a.py").write_text('"""Text."""')
    return {"format": "docstrings", "pairs": "columns"}


@pytest.mark.parametrize(
    ("make", "key", "problem"),
    [
        (broken_jsonl, "corpus.max_quarantined", "2 of 102 rows .*a.jsonl at byte .*not JSON"),
        (first_line_broken, "corpus.max_quarantined", "2 of 3 rows .*a.json at byte 0"),
        (nested_jsonl, "corpus.max_quarantined", "1 of 1 rows .*column `text` holds a list"),
        (missing_jsonl_column, "corpus.text_column", "no column `text`, it has title, body"),
        (missing_csv_column, "corpus.max_quarantined", "1 of 2 rows .*b.csv .*no column `text`"),
        (missing_parquet_columns, "corpus.pair_columns", "no column `sentence2`, it has sen"),
        (missing_group_column, "corpus.group_column", "no column `image`, it has text"),
        (missing_score_column, "corpus.score_column", "no column `score`"),
        (list_column, "corpus.text_column", "holds list"),
        (text_named_parquet, "corpus.inputs", "a.parquet cannot be read .not Parquet"),
        (truncated_gzip, "corpus.max_quarantined", "a.txt.gz at byte .*ends too early"),
        (pairs_that_text_cannot_give, "corpus.pairs", "text files cannot give `columns`"),
        (scores_of_a_group, "corpus.score_column", "without scores"),
        (empty_range, "corpus.score_range", "is empty"),
        (exclude_without_columns, "corpus.exclude_columns", "no column .*it has title"),
        (exclude_that_is_missing, "corpus.exclude", "there is no file"),
        (all_too_short, "corpus.inputs", "no pair is left of 3 rows: most often `too short`"),
        (nothing_in_it, "corpus.inputs", "no pair is left of 0 rows"),
        (docstrings_in_groups, "corpus.pairs", "docstrings cannot give `columns`"),
    ],
)
def test_what_the_user_can_mend_is_said_in_one_line(spark, tmp_path, make, key, problem):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    corpus = {"inputs": [str(inputs)], "evaluation_share": 0, **make(inputs)}
    kept = tmp_path / "prepared" / "corpus" / "funnel.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("what was there before")
    with pytest.raises(InputError, match=problem) as raised:
        prepared(spark, tmp_path, **corpus)
    assert raised.value.key == key
    assert "\n" not in str(raised.value)
    # What was cut is kept for a run with other settings, whole or not at all.
    units = tmp_path / "prepared" / "units"
    left = [path for path in (tmp_path / "prepared").rglob("*") if path.is_file()]
    assert [path for path in left if not path.is_relative_to(units)] == [kept]
    assert not [path for path in units.glob("*") if not path.name.isdigit()]
    assert kept.read_text() == "what was there before"
