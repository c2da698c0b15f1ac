"""What a format is, and that one more takes a file and a line in the registry."""

import gzip
import json

import pytest
from range_cases import quarantined, read, texts

from pipelines.catalog import FORMATS, TABLE_FORMATS
from pipelines.corpus.readers.formats import Columns, Wanted
from pipelines.corpus.readers.inputs import COLUMNS, find_files
from pipelines.corpus.readers.spark_reader import columns_in
from pipelines.corpus.readers.streams import UnreadableError
from pipelines.vectors.inputs import rows_as_json

LINES = "lang=en;text=A dog runs.\nnothing of it\n\nlang=de;text=Ein Hund läuft. a=b\n"


@pytest.fixture
def key_values(monkeypatch, tmp_path):
    """A file of a format that is one line in the registry."""
    monkeypatch.setitem(FORMATS.entries, "key_values", "key_values:KEY_VALUES")
    file = tmp_path / "rows.kv.gz"
    file.write_bytes(gzip.compress(LINES.encode()))
    return file


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_says_how_it_is_read(name):
    known = FORMATS.load(name)
    by_spark = known.read is not None or known.read_files is not None
    assert (known.form is None) == by_spark
    assert known.form is None or known.files is not None
    assert known.load is None or known.files is None
    assert known.unit == "rows" or known.is_documents


@pytest.mark.parametrize("name", TABLE_FORMATS)
def test_a_format_of_tables_has_rows(name):
    known = TABLE_FORMATS.load(name)
    assert name == "parquet" or (known.rows is None) != (known.load is None)


def test_one_more_format_is_read_by_corpus(key_values, tmp_path):
    assert find_files([str(tmp_path)], "key_values") == [key_values]
    assert find_files([str(tmp_path)], COLUMNS) == [key_values]
    assert columns_in(key_values, "corpus.exclude") == ("key_values", ("lang", "text"))
    rows = read(key_values, "key_values", group="lang")
    assert texts(rows) == ["A dog runs.", "Ein Hund läuft. a=b"]
    assert [row["group"] for row in rows] == ["en", None, "de"]
    assert quarantined(rows) == [(25, "no key=value")]


def test_one_more_format_is_read_by_embed(key_values):
    wanted = Wanted("key_values", Columns(("text",)), as_rows=True)
    rows = rows_as_json([(str(key_values), 0, None)], wanted=wanted)
    assert json.loads(next(rows)) == {"lang": "en", "text": "A dog runs."}
    with pytest.raises(UnreadableError, match=r"rows\.kv\.gz at byte 25: no key=value"):
        next(rows)


CSV = 'id,text,\n1,"a ""b""\nc",x\n2,,\n'
CSV_ROWS = [{"id": "1", "text": 'a "b"\nc', "_c2": "x"}, {"id": "2", "text": None, "_c2": None}]
JSON = '{"id": 1, "text": ["a"]}\n\n{"b": null}'
TEXT = "one\r\n\ntwo\rthree"


@pytest.mark.parametrize(
    ("kind", "name", "content", "rows"),
    [
        ("csv", "a.csv", CSV, CSV_ROWS),
        ("csv", "a.tsv", 'id\ttext\n1\t"a"\n', [{"id": "1", "text": '"a"'}]),
        ("jsonl", "a.jsonl", JSON, [{"id": 1, "text": ["a"]}, {"b": None}]),
        ("text", "a.txt", TEXT, [{"text": line} for line in ("one", "", "two", "three")]),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_rows_have_all_columns_whatever_the_encoding(tmp_path, kind, name, content, rows, encoding):
    path = tmp_path / name
    path.write_bytes(content.encode(encoding))
    wanted = Wanted(kind, Columns(("text",)), as_rows=True)
    found = rows_as_json([(str(path), 0, None)], wanted=wanted)
    assert [json.loads(row) for row in found] == rows
