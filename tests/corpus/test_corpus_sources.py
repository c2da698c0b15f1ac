"""Every format as raw rows of one shape, read by Spark's executors."""

import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.corpus.readers.rows import ROW_SCHEMA
from pipelines.corpus.readers.spark_reader import input_fingerprint, read_rows, texts_of
from pipelines.errors import InputError
from pipelines.settings import CorpusSettings


def corpus(*inputs, **more):
    return CorpusSettings.model_validate({"inputs": [str(path) for path in inputs], **more})


def rows_of(spark, *inputs, **more):
    return [row.asDict() for row in read_rows(spark, corpus(*inputs, **more)).collect()]


def shape(frame):
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


KINDS = {pa.int64(): "bigint", pa.string(): "string", pa.list_(pa.string()): "array<string>"}
SHAPE = [(field.name, KINDS[field.type]) for field in ROW_SCHEMA]


def test_a_folder_of_documents_of_all_kinds(spark, tmp_path):
    contents = {
        "deep/a.md": b"# Title\ntext of a\n",
        "b.txt": "Grüße".encode("utf-16"),
        "wiki_00": b'<doc id="1" title="T">\ntext\n</doc>\n',
        "deep/wiki_01.gz": gzip.compress(b'{"title": "U", "text": "more"}\n'),
        "manifest.tsv": b"no\tdocument\n",
        "bad.txt": b"\x89PNG\r\n\x1a\n" + bytes(40),
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    settings = corpus(tmp_path, format="documents", pairs="title")
    frame = read_rows(spark, settings)
    assert shape(frame) == SHAPE
    assert frame.rdd.getNumPartitions() >= 2
    rows = {row["file"].rsplit("/", 1)[-1]: row for row in frame.collect()}
    assert {name: row["title"] for name, row in rows.items()} == {
        "a.md": "Title",
        "b.txt": None,
        "wiki_00": "T",
        "wiki_01.gz": "U",
        "bad.txt": None,
    }
    assert rows["b.txt"]["text_0"] == "Grüße"
    assert rows["bad.txt"]["quarantined"] == "binary"
    assert {row["level"] for row in rows.values()} == {"rows"}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_triplets_of_columns(spark, tmp_path, kind):
    table = {
        "anchor": ["a", "d"],
        "positive": ["b", "é"],
        "negative": ["c", None],
        "other": ["e", "f"],
        "n": [1, 2],
    }
    path = tmp_path / f"a+b %20[1].{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(table), path)
    elif kind == "csv":
        path.write_text("n,anchor,positive,negative,other\n1,a,b,c,e\n2,d,é,,f\n")
    else:
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = corpus(
        path,
        format=kind,
        pairs="triplets",
        triplet_columns=("anchor", "positive", "negative", "other"),
        score_columns=("n", "n", "n"),
        group_column="n",
    )
    frame = read_rows(spark, settings)
    assert shape(frame) == SHAPE
    names = ("text_0", "text_1", "negatives", "candidate_scores", "group", "rows")
    found = frame.select(*names).orderBy("group").collect()
    assert [tuple(row) for row in found] == [
        ("a", "b", ["c", "e"], ["1"] * 3, "1", 1),
        ("d", "é", [None, "f"], ["2"] * 3, "2", 1),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "table"])
def test_triplets_of_a_column_of_lists(spark, tmp_path, kind):
    rows = [
        {"q": "a", "d": "b", "wrong": ["c", "e", "x"], "s": [1, 2.5, -3], "n": 1},
        {"q": "d", "d": "é", "wrong": ["f"], "s": [1.0, 2.0], "n": 2},
    ]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    if kind == "table":
        spark.read.parquet(str(path)).createOrReplaceTempView("with_lists")
    settings = corpus(
        "with_lists" if kind == "table" else path,
        format=kind,
        pairs="triplets",
        triplet_columns=("q", "d", "wrong[0:2]"),
        score_columns=("s[0:3]",),
        group_column="n",
    )
    assert settings.hard_negatives == 2
    frame = read_rows(spark, settings)
    assert shape(frame) == SHAPE
    found = frame.select("text_0", "text_1", "negatives", "candidate_scores").orderBy("group")
    first, second = map(tuple, found.collect())
    assert first[:3] == ("a", "b", ["c", "e"])
    assert [float(score) for score in first[3]] == [1, 2.5, -3]
    # Rows that have fewer are dropped: there is no text.
    assert second[:3] == ("d", "é", ["f", None])
    # A line of JSON without a list there is quarantined.
    wrong = [("z[0]", "has no column `z`"), *([("d[1]", "holds")] if kind != "jsonl" else [])]
    for name, problem in wrong:
        asked = settings.model_copy(update={"triplet_columns": (name, "d", "q")})
        with pytest.raises(InputError, match=problem) as raised:
            read_rows(spark, asked).collect()
        assert raised.value.key == "corpus.triplet_columns"


def test_one_wrong_file_among_good_ones_is_quarantined(spark, tmp_path):
    (tmp_path / "a.csv").write_text("title,other\na,b\n")
    (tmp_path / "b.csv").write_text("other,text\nb,good\n")
    (tmp_path / "c.csv").write_text("")
    rows = rows_of(spark, tmp_path, format="csv", pairs="single")
    found = {(row["file"][-5:], row["text_0"], row["quarantined"]) for row in rows}
    assert found == {("a.csv", "title,other\na,b\n", "no column `text`"), ("b.csv", "good", None)}


def test_a_file_that_vanishes_before_it_is_read(spark, tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some text")
    frame = read_rows(spark, corpus(tmp_path, format="text", pairs="single"))
    (tmp_path / "b.txt").unlink()
    rows = {row["file"][-5:]: row["quarantined"] for row in frame.collect()}
    assert rows == {"a.txt": None, "b.txt": "vanished"}


def test_docstrings_have_the_shape(spark, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").write_text('"""Grüße of a module."""\n')
    (tmp_path / "package" / "b.py").write_text("x = 1\n")
    frame = read_rows(spark, corpus(tmp_path))
    assert shape(frame) == SHAPE
    rows = {(row["level"], row["file"]): row for row in frame.collect()}
    row = rows["rows", "package/a.py"]
    assert (row["text_0"], row["unit"], row["bytes"]) == ("Grüße of a module.", "package", 20)
    assert row["document"] == "package/a.py::<module>"
    assert rows["source files", "package/b.py"]["reason"] == "no docstring"
    assert len(rows) == 3


TEXT = {"a.md": b"text"}
BINARIES = {"a.txt": b"\x89PNG" + bytes(9), "b.txt.gz": b"no gzip at all"}
CSV = {"a.csv": b"text,other\na,b\n", "b.csv": b"text,more\na,b\n"}


@pytest.mark.parametrize(
    ("files", "settings", "key", "problem"),
    [
        (BINARIES, {"format": "documents"}, "inputs", r"a.txt cannot be read \(binary\)"),
        ({"a.json": b'["text"]'}, {"format": "jsonl"}, "inputs", "no JSON object in its first"),
        (
            {"a.jsonl": b'{"title": "a"}\n{"title": "a", "body": "b"}'},
            {"format": "jsonl"},
            "text_column",
            "no column `text`. Name one of its columns: title, body",
        ),
        (
            CSV,
            {"format": "csv", "pairs": "title", "title_column": "name"},
            "title_column",
            "no column `name`. Name one of its columns: text, other",
        ),
        ({"a.csv": b""}, {"format": "csv"}, "inputs", r"a.csv cannot be read \(no header line\)"),
        ({"a.tsv": b""}, {"format": "documents"}, "inputs", "holds no documents file"),
        (TEXT, {"format": "text", "pairs": "columns"}, "pairs", "text files cannot give"),
        (TEXT, {"format": "text", "pairs": "title"}, "pairs", "cannot give `title`"),
        (TEXT, {"format": "documents", "group_column": "x"}, "group_column", "no columns"),
        (TEXT, {"pairs": "title"}, "pairs", "docstrings cannot give `title`"),
        (TEXT, {"format": "text", "score_column": "x"}, "score_column", "pairs without scores"),
    ],
)
def test_what_the_user_can_mend_is_said_at_once(spark, tmp_path, files, settings, key, problem):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as raised:
        read_rows(spark, corpus(tmp_path, **{"pairs": "single", **settings}))
    assert raised.value.key == f"corpus.{key}"
    assert "\n" not in str(raised.value)


def test_texts_to_exclude_come_from_files_of_several_formats(spark, tmp_path):
    pq.write_table(
        pa.table({"one": ["a", None], "two": ["b", "c"], "n": [1, 2]}), tmp_path / "a.pq"
    )
    (tmp_path / "b.csv").write_text("two,more\nd,x\n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"one": "e", "two": null}\n'))
    frame = texts_of(spark, [str(tmp_path)], ["one", "two"], "corpus.exclude")
    assert frame.columns == ["text"]
    assert sorted(row["text"] for row in frame.collect()) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("name", "content", "key", "problem"),
    [
        ("a.csv", b"title\nx\n", "corpus.exclude_columns", "`one`. Name one of its columns: title"),
        ("a.csv", b"one\nx,y\n", "corpus.exclude", "at byte 4 cannot be read"),
        ("a.jsonl", b'{"one": "x"}\n{"one"', "corpus.exclude", "not JSON"),
        ("a.parquet", b"no parquet", "corpus.exclude", "not Parquet"),
        ("a.txt", b"text", "corpus.exclude", "shows no format"),
    ],
)
def test_exclude_files_that_cannot_be_read_are_refused(
    spark, tmp_path, name, content, key, problem
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as raised:
        texts_of(spark, [str(tmp_path / name)], ["one"], "corpus.exclude")
    assert raised.value.key == key


def test_the_fingerprint_changes_with_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    settings = corpus(tmp_path, format="text", pairs="single")
    first = input_fingerprint(settings)
    assert first == input_fingerprint(settings) == json.loads(json.dumps(first))
    (tmp_path / "a.txt").write_text("texts")
    second = input_fingerprint(settings)
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    touched = input_fingerprint(settings)
    (tmp_path / "b.txt").write_text("more")
    third = input_fingerprint(settings)
    (tmp_path / "test.csv").write_text("one\nx\n")
    fourth = input_fingerprint(
        settings.model_copy(update={"exclude": (str(tmp_path / "test.csv"),)})
    )
    told = [json.dumps(told) for told in (first, second, touched, third, fourth)]
    assert len(set(told)) == 5


def test_the_fingerprint_of_docstrings_and_tables(tmp_path):
    (tmp_path / "a.py").write_text("x")
    first = input_fingerprint(corpus(tmp_path))
    (tmp_path / "a.py").write_text("xy")
    second = input_fingerprint(corpus(tmp_path))
    assert first["files"] == second["files"] == 1 and first != second
    assert input_fingerprint(corpus("catalog.database.table", format="iceberg")) is None
    assert input_fingerprint(corpus("view", format="table")) is None
    assert input_fingerprint(corpus("database.table", format="delta")) is None
    assert input_fingerprint(corpus(tmp_path, format="delta")) is None
    (tmp_path / "_delta_log").mkdir()
    for name in (f"{7:020}.json", f"{10:020}.checkpoint.parquet", "_last_checkpoint"):
        (tmp_path / "_delta_log" / name).write_text("")
    assert input_fingerprint(corpus(tmp_path, format="delta")) == {"tables": [[str(tmp_path), 10]]}
