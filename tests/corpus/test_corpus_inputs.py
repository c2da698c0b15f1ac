"""Inputs are found, and wrong ones refused in one line, without Spark."""

import os
import socket
from pathlib import Path

import pytest
from range_cases import quarantined, read

from pipelines.corpus.readers.docstrings import SourceFile, file_docstrings
from pipelines.corpus.readers.inputs import find_files
from pipelines.corpus.readers.rows import file_of
from pipelines.errors import InputError
from pipelines.evaluation.beir import files_of_set
from pipelines.evaluation.pairs import PairFiles, check_file
from pipelines.settings.load import parse
from pipelines.spark.frames import read_path
from pipelines.vectors.inputs import input_stamps
from pipelines.vectors.mining_inputs import stamps


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
        ("lake://host/a.txt", "is in an unknown kind of store"),
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


@pytest.fixture
def odd_places(tmp_path):
    """A named pipe that nobody writes, and a socket, with names of files."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket.jsonl"))
    return tmp_path


@pytest.mark.parametrize(
    "given, kind",
    [
        ("pipe.jsonl", "named pipe"),
        ("socket.jsonl", "socket"),
        (".", "named pipe"),
        ("*.jsonl", "named pipe"),
        ("/dev/null", "device"),
        ("link.jsonl", "named pipe"),
    ],
)
def test_what_may_never_answer_is_refused(odd_places, monkeypatch, given, kind):
    monkeypatch.chdir(odd_places)
    (odd_places / "link.jsonl").symlink_to("pipe.jsonl")
    for inputs in ([given], ["/dev/null", given]):
        with pytest.raises(InputError, match=r"is a (named pipe|socket|device)\. Name regular"):
            find_files(inputs, "jsonl")
    with pytest.raises(InputError, match=f"is a {kind}"):
        find_files([given], "jsonl")


def test_other_commands_do_not_wait_for_a_pipe_either(odd_places):
    pipe = str(odd_places / "pipe.jsonl")
    inputs = {"inputs": [pipe], "format": "jsonl"}
    with pytest.raises(InputError, match=r"^embedding.inputs: .* is a named pipe"):
        input_stamps(parse({"embedding": inputs}).embedding)
    with pytest.raises(InputError, match=r"^mining.inputs: .* is a named pipe"):
        stamps(parse({"mining": inputs}))
    with pytest.raises(InputError, match=r"^evaluation.similarity: .* is a named pipe"):
        check_file(pipe, PairFiles("evaluation.similarity", ("a", "b", "c")))
    (odd_places / "qrels").mkdir()
    (odd_places / "qrels" / "test.tsv").write_text("")
    os.mkfifo(odd_places / "corpus.jsonl")
    with pytest.raises(InputError, match=r"there is no .*corpus\.jsonl"):
        files_of_set(str(odd_places))


def test_a_file_that_has_become_a_pipe_is_not_waited_for(odd_places):
    (found,) = quarantined(read(odd_places / "pipe.jsonl", "jsonl"))
    assert found[1] == "not readable (no regular file)"
    os.mkfifo(odd_places / "module.py")
    assert file_docstrings(SourceFile(str(odd_places), "module.py")) == ([], "not readable")


@pytest.fixture
def linked(tmp_path):
    """A folder with links in it and out of it, and what they lead to."""
    for name in ("data/own.jsonl", "data/deep/own.jsonl", "else/a.jsonl", "else/b/c.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "else" / "back").symlink_to("../data")
    return tmp_path / "data"


@pytest.mark.parametrize("given", [".", "*", "**/*.jsonl", "d*/../*.jsonl"])
@pytest.mark.parametrize("target", ["../else/a.jsonl", "../else", "/etc/hostname"])
def test_links_out_of_a_folder_are_followed_only_if_settings_say_so(linked, given, target):
    (linked / "out.jsonl").symlink_to(target)
    asked = str(linked / given)
    with pytest.raises(InputError, match=r"is a link to .*, outside of .*data\. Set") as raised:
        find_files([asked], "jsonl")
    assert "Set corpus.follow_links to true" in raised.value.remedy
    found = find_files([asked], "jsonl", follow_links=True)
    assert linked / "own.jsonl" in found
    assert any(file.is_relative_to(linked / "out.jsonl") for file in found)
    # The link back is not gone through: nothing is read twice.
    real = [file.resolve() for file in find_files([str(linked)], "jsonl", follow_links=True)]
    assert len(real) == len({*real})


def test_links_that_stay_and_links_that_are_named_are_followed(linked):
    (linked / "again.jsonl").symlink_to("deep/own.jsonl")
    (linked / "deep" / "up").symlink_to("..")
    (linked / "readme.txt").symlink_to("../else/a.jsonl")
    names = ["again.jsonl", "deep/own.jsonl", "own.jsonl"]
    assert find_files([str(linked)], "jsonl") == [linked / name for name in names]
    folder, file = linked.parent / "folder", linked.parent / "file.jsonl"
    folder.symlink_to(linked)
    file.symlink_to(linked.parent / "else" / "a.jsonl")
    found = find_files([str(folder), str(file)], "jsonl")
    assert found == [file, *(folder / name for name in names)]


def test_the_section_of_the_inputs_says_whether_links_are_followed(linked):
    (linked / "out.jsonl").symlink_to("../else/a.jsonl")
    inputs = {"inputs": [str(linked)], "format": "jsonl"}
    with pytest.raises(InputError, match=r"^embedding.inputs: .*Set embedding.follow_links"):
        input_stamps(parse({"embedding": inputs}).embedding)
    with pytest.raises(InputError, match=r"^mining.inputs: .*Set mining.follow_links"):
        stamps(parse({"mining": inputs}))
    followed = {**inputs, "follow_links": True}
    assert stamps(parse({"mining": followed})) and input_stamps(
        parse({"embedding": followed}).embedding
    )


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels"])
def test_links_out_of_a_retrieval_set_are_followed_only_if_settings_say_so(tmp_path, name):
    folder, elsewhere = tmp_path / "set", tmp_path / "else"
    for place in (folder, elsewhere):
        (place / "qrels").mkdir(parents=True)
        for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            (place / file).write_text("")
    assert len(files_of_set(str(folder))) == 3
    (folder / name).rename(folder / "own")
    (folder / name).symlink_to("own")
    assert len(files_of_set(str(folder))) == 3
    (folder / name).unlink()
    (folder / name).symlink_to(elsewhere / name)
    with pytest.raises(InputError, match=r"outside of .*Set evaluation\.follow_links to true"):
        files_of_set(str(folder))
    assert len(files_of_set(str(folder), follow_links=True)) == 3
    # A link that is named itself is what was meant.
    (tmp_path / "dev.tsv").write_text("")
    (elsewhere / "qrels" / "dev.tsv").symlink_to(tmp_path / "dev.tsv")
    assert files_of_set(str(elsewhere / "qrels" / "dev.tsv"))
