"""Inputs are found, and wrong ones refused in one line, without Spark."""

from pathlib import Path

import pytest

from pipelines.corpus.readers.inputs import find_files
from pipelines.corpus.readers.rows import file_of
from pipelines.errors import InputError
from pipelines.spark.frames import read_path


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


def test_a_volume_has_no_scheme_in_spark_connect(monkeypatch):
    in_volume, elsewhere = Path("/Volumes/main/a b"), Path("/data/a b")
    assert read_path(in_volume) == "file:///Volumes/main/a b"
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")
    assert read_path(in_volume) == "/Volumes/main/a b"
    assert read_path(elsewhere) == "file:///data/a b"
    assert file_of("dbfs:/Volumes/main/a%20b") == str(in_volume)
    assert file_of("file:///data/a%20b") == str(elsewhere)
    assert file_of("s3://data/a%20b") == "s3://data/a%20b"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("missing.txt", "there is no file or folder"),
        ("*.txt", "nothing matches"),
        (".", "holds no text file"),
        ("dbfs:/a.txt", "is on dbfs"),
        ("lake://host/a.txt", "is in no kind of store"),
    ],
)
def test_inputs_that_are_not_there(tmp_path, monkeypatch, given, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=problem) as raised:
        find_files([given], "text")
    assert raised.value.key == "corpus.inputs"
    assert "\n" not in str(raised.value)


def test_wikiextractor_files_have_no_suffix(tmp_path):
    for name in (
        "AA/wiki_00",
        "AB/wiki_01.bz2",
        "AB/wiki",
        "LICENSE",
        "a.txt",
        "b.tsv",
        "c.txt.zst",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    for kind in ("wikiextractor", "documents"):
        found = find_files([str(tmp_path)], kind)
        assert [file.name for file in found] == ["wiki_00", "wiki_01.bz2", "a.txt", "c.txt.zst"]
    assert [file.name for file in find_files([str(tmp_path)], "text")] == ["a.txt", "c.txt.zst"]


def test_a_named_file_is_taken_whatever_its_suffix(tmp_path):
    (tmp_path / ".hidden.data").write_text("text")
    (found,) = find_files([str(tmp_path / ".hidden.data")], "documents")
    assert found.name == ".hidden.data"


def test_a_packed_parquet_file_is_none(tmp_path):
    (tmp_path / "a.parquet.gz").write_text("")
    with pytest.raises(InputError, match="holds no parquet file"):
        find_files([str(tmp_path)], "parquet")


def test_no_inputs_at_all():
    with pytest.raises(InputError, match="empty"):
        find_files([], "text")


def test_a_path_that_goes_up_is_the_one_that_spark_tells_of(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("text")
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    for given in ("../data/a.txt", "../data", "../data/*.txt", f"file://{tmp_path}/job/../data"):
        assert find_files([given], "text") == [tmp_path / "data" / "a.txt"]
