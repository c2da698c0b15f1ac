"""Records of JSON lines and CSV: what cannot be read is named, and reading goes on."""

import json

import pytest
from range_cases import quarantined, read, texts

from pipelines.corpus.readers.csv_format import COMMAS, NOT_CLOSED_IN_LINE, TABS, WRONG_FIELDS
from pipelines.corpus.readers.csv_parser import WRONG_QUOTES
from pipelines.corpus.readers.json_lines import NOT_AN_OBJECT, NOT_JSON


def written(folder, name, content):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def reasons(rows):
    return [reason for _, reason in quarantined(rows)]


def test_json_lines_that_cannot_be_read(tmp_path):
    lines = ['{"text": "a"}', '{"text": "cut', "[]", '"text"', "{}", '{"text": ["a"]}']
    lines += ["", '{"text": {"a": 1}}', '{"text": null}', "[" * 100_000, '{"text": "b"}']
    rows = read(written(tmp_path, "a.jsonl", "\n".join(lines)), "jsonl")
    assert texts(rows) == ["a", None, "b"]
    assert reasons(rows) == [
        NOT_JSON,
        NOT_AN_OBJECT,
        NOT_AN_OBJECT,
        "no column `text`",
        "column `text` holds a list",
        "column `text` holds an object",
        NOT_JSON,
    ]
    content = "\n".join(lines)
    assert [offset for offset, _ in quarantined(rows)][:2] == [
        content.index('{"text": "cut'),
        content.index("[]"),
    ]
    assert rows[1]["text_0"] == '{"text": "cut\n'
    assert all(len(row["text_0"] or "") <= 200 for row in rows)
    assert sum(row["bytes"] for row in rows) == len(content)


def test_values_of_all_kinds_and_columns_of_all_uses(tmp_path):
    fields = {"one": 1.5, "two": True, "score": 3, "group": "g", "title": "t"}
    rows = read(
        written(tmp_path, "a.jsonl", json.dumps(fields)),
        "jsonl",
        columns=("one", "two"),
        score="score",
        group="group",
        title="title",
    )
    names = (
        "text_0",
        "text_1",
        "negatives",
        "score",
        "group",
        "title",
        "document",
        "place",
        "level",
    )
    values = ["1.5", "true", None, "3", "g", "t", None, None, "rows"]
    assert [[row[name] for name in names] for row in rows] == [values]


def test_elements_of_lists_in_json(tmp_path):
    lines = ['{"a": "x", "w": ["p", 2]}', '{"a": "x", "w": ["p"]}', '{"a": "x", "w": "p"}']
    lines += ['{"a": "x"}', '{"a": "x", "w": ["p", ["q"]]}', '{"a": "x", "w[1]": "its name"}']
    path = written(tmp_path, "a.jsonl", "\n".join(lines))
    rows = read(path, "jsonl", columns=("a", "w[1]"))
    assert [row["text_1"] for row in rows] == ["2", None, None, None, None, "its name"]
    assert reasons(rows) == [
        "column `w` holds no list",
        "no column `w`",
        "column `w[1]` holds a list",
    ]


def test_half_a_surrogate_pair_in_json(tmp_path):
    rows = read(written(tmp_path, "a.jsonl", '{"text": "a\\ud83d b \\ud83d\\ude00"}'), "jsonl")
    assert texts(rows) == ["a\ufffd b 😀"]


def test_json_line_that_is_not_utf8(tmp_path):
    good = '{"text": "Grüße"}\n'.encode()
    rows = read(written(tmp_path, "a.jsonl", good + b'{"text": "\xff"}\n' + good), "jsonl")
    assert texts(rows) == ["Grüße", "Grüße"]
    assert reasons(rows) == [f"not UTF-8 at byte {len(good) + 10}"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_with_all_kinds_of_fields(tmp_path, end):
    lines = ["other,text", '1,"a, b"', '2,"c ""d"""', '3,"two', 'lines"', "", "4,plain"]
    lines += ['5,5" pipe', "6,"]
    rows = read(written(tmp_path, "a.csv", end.join(lines)), "csv")
    assert not quarantined(rows)
    assert texts(rows) == ["a, b", 'c "d"', f"two{end}lines", "plain", '5" pipe', None]


def test_csv_with_other_numbers_of_fields(tmp_path):
    content = "other,text\n1,a\n2\n3,b,c\n4,d\n"
    rows = read(written(tmp_path, "a.csv", content), "csv")
    assert texts(rows) == ["a", "d"]
    assert quarantined(rows) == [(content.index("2"), WRONG_FIELDS), (17, WRONG_FIELDS)]
    assert [row["text_0"] for row in rows if row["quarantined"]] == ["2\n", "3,b,c\n"]


@pytest.mark.parametrize("first", ['0,"never closed', '0,"closed" too early', '"0,"x"'])
def test_unbalanced_quotes_cost_their_line_alone(tmp_path, first):
    lines = ["other,text", "before,a", first, *(f'{n},"text {n}"' for n in range(50)), "51,b", ""]
    rows = read(written(tmp_path, "a.csv", "\n".join(lines)), "csv")
    assert texts(rows) == ["a", *(f"text {n}" for n in range(50)), "b"]
    assert quarantined(rows) == [(len("other,text\nbefore,a\n"), WRONG_QUOTES)]
    assert sum(row["bytes"] for row in rows) == len("\n".join(lines))


def test_a_quote_that_is_never_closed_swallows_no_more_than_a_record(tmp_path):
    lines = ["other,text", '0,"never closed', *(f"{n},text {n}" for n in range(2000))]
    rows = read(written(tmp_path, "a.csv", "\n".join(lines)), "csv", record=1000)
    assert texts(rows) == [f"text {n}" for n in range(2000)]
    assert reasons(rows) == [WRONG_QUOTES]


def test_a_long_record_of_many_lines(tmp_path):
    text = "line\n" * 20_000
    rows = read(written(tmp_path, "a.csv", f'text\n"{text}"\nb\n'), "csv")
    assert texts(rows) == [text, "b"]


def test_csv_whose_quotes_span_lines_although_they_may_not(tmp_path):
    content = 'text\none\n"two\nlines"\n"th""ree"\n"fo"ur"\nfi"v"e\nsix,7\n\n'
    rows = read(written(tmp_path, "a.csv", content), "csv", multiline=False)
    assert texts(rows) == ["one", 'th"ree', 'fi"v"e']
    assert quarantined(rows) == [
        (9, NOT_CLOSED_IN_LINE),
        (14, NOT_CLOSED_IN_LINE),
        (31, NOT_CLOSED_IN_LINE),
        (46, WRONG_FIELDS),
    ]
    rows = read(written(tmp_path, "b.csv", 'text\n"a"b"c"\nd\n'), "csv", multiline=False)
    assert (texts(rows), quarantined(rows)) == (["d"], [(5, WRONG_QUOTES)])


def test_csv_line_that_is_not_utf8(tmp_path):
    content = 'text\n"Grüße,\nund'.encode() + b' \xff"\n' + 'Köln\n"Straße"'.encode()
    rows = read(written(tmp_path, "a.csv", content), "csv")
    assert texts(rows) == ["Köln", "Straße"]
    assert quarantined(rows) == [(5, f"not UTF-8 at byte {content.index(0xFF)}")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_header_without_a_wanted_column(tmp_path, name):
    path = written(tmp_path, name, "other\nx\ny\n")
    rows = read(path, "csv", split=3 if name == "a.tsv" else None)
    assert quarantined(rows) == [(0, "no column `text`")]


def test_a_name_that_is_there_twice_is_refused_where_it_is_wanted(tmp_path):
    rows = read(written(tmp_path, "a.tsv", "text\ttext\na\tb\n"), "csv")
    assert quarantined(rows) == [(0, "two columns `text`")]
    rows = read(written(tmp_path, "b.tsv", "text\tx\tx\na\tb\tc\n"), "csv")
    assert texts(rows) == ["a"]


def test_a_tab_separated_record_without_texts_is_a_record(tmp_path):
    rows = read(written(tmp_path, "a.tsv", "text\tother\n\t\n\na\tb\nc\n"), "csv")
    assert texts(rows) == [None, "a"]
    assert reasons(rows) == [WRONG_FIELDS]


@pytest.mark.parametrize(("form", "head"), [(COMMAS, "text,,\n"), (TABS, "text\t\t\n")])
def test_columns_without_names_are_called_as_in_spark(form, head):
    assert form.header(head) == ("text", "_c1", "_c2")
