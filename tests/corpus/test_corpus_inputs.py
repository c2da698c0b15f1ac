"""Inputs are found, and wrong ones refused in one line, without Spark."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.corpus.inputs import check_files, csv_header, find_files
from pipelines.errors import InputError
from pipelines.frames import read_path


def test_a_folder_gives_its_visible_files_of_the_format_at_any_depth(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.jsonl", "a.jsonl.gz", "deep/c.json", "other.csv", "_hidden.jsonl", ".x.jsonl"):
        (tmp_path / name).write_bytes(b"{}\n")
    found = find_files([str(tmp_path)], "jsonl")
    assert [str(file.relative_to(tmp_path)) for file in found] == [
        "a.jsonl.gz",
        "b.jsonl",
        "deep/c.json",
    ]


def test_a_glob_and_a_name_give_a_file_once(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    found = find_files([str(tmp_path / "*.txt"), f"file://{tmp_path}/a.txt"], "text")
    assert [file.name for file in found] == ["a.txt", "b.txt"]


def test_a_name_with_brackets_is_taken_literally(tmp_path):
    (tmp_path / "a[1].txt").write_text("text")
    (found,) = find_files([str(tmp_path / "a[1].txt")], "text")
    assert found.name == "a[1].txt"
    assert read_path(found).endswith(r"a\[1\].txt")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("missing.txt", "there is no file or folder"),
        ("*.txt", "nothing matches"),
        (".", "holds no text file"),
        ("hdfs://host/a.txt", "is on hdfs"),
    ],
)
def test_inputs_that_are_not_there(tmp_path, monkeypatch, given, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=problem) as raised:
        find_files([given], "text")
    assert raised.value.key == "corpus.inputs"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "name", "content", "problem"),
    [
        ("parquet", "a.parquet", b"just some text", "is not a Parquet file"),
        ("parquet", "a.parquet", b"", "is not a Parquet file"),
        ("parquet", "a.parquet", b"PAR1 and then it was cut off", "without its end"),
        ("text", "a.txt", b"PAR1xxxxPAR1", "is a Parquet file"),
        ("jsonl", "a.jsonl", b"\x00\x01\x02", "is binary"),
        ("csv", "a.csv", gzip.compress(b"a,b\n"), "is binary"),
        ("csv", "a.csv.gz", b"a,b\n1,2\n", "is not what its name says|cannot be read"),
        ("text", "a.zip", b"PK\x03\x04", "packed"),
        ("text", "_a.txt", b"text", "Spark skips"),
    ],
)
def test_files_that_are_not_what_they_are_said_to_be(tmp_path, kind, name, content, problem):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=problem) as raised:
        check_files([tmp_path / name], kind)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_good_files_pass(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("Grüße".encode()))
    check_files([tmp_path / "a.parquet"], "parquet")
    check_files([tmp_path / "a.txt.gz"], "text")


def test_headers_of_csv_and_tsv(tmp_path):
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf"first, quoted",second\n1,2\n')
    (tmp_path / "a.tsv").write_text('one "quote\ttwo\n')
    (tmp_path / "empty.csv").write_text("")
    assert csv_header(tmp_path / "a.csv") == ("first, quoted", "second")
    assert csv_header(tmp_path / "a.tsv") == ('one "quote', "two")
    with pytest.raises(InputError, match="no header"):
        csv_header(tmp_path / "empty.csv")
