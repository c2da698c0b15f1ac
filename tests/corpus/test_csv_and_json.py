"""Records of JSON lines and CSV, of any dialect: what cannot be read is named."""

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_cases import quarantined, read, texts

from pipelines.corpus.readers.csv_files import (
    COMMAS,
    NOT_CLOSED_IN_LINE,
    TABS,
    WRONG_FIELDS,
    WRONG_QUOTES,
)
from pipelines.corpus.readers.formats import RFC_4180, Dialect
from pipelines.corpus.readers.inputs import column_remedy, find_files
from pipelines.corpus.readers.json_lines import NOT_AN_OBJECT, NOT_JSON
from pipelines.corpus.readers.spark_reader import columns_in, read_rows
from pipelines.errors import InputError
from pipelines.evaluation.pairs import PairFiles, check_file
from pipelines.settings.load import parse
from pipelines.vectors.inputs import input_stamps


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


def test_a_tab_separated_record_without_texts_is_a_record(tmp_path):
    rows = read(written(tmp_path, "a.tsv", "text\tother\n\t\n\na\tb\nc\n"), "csv")
    assert texts(rows) == [None, "a"]
    assert reasons(rows) == [WRONG_FIELDS]


@pytest.mark.parametrize(("form", "head"), [(COMMAS, "text,,\n"), (TABS, "text\t\t\n")])
def test_columns_without_names_are_called_as_in_spark(form, head):
    assert form.header(head, RFC_4180) == ("text", "_c1", "_c2")


BACKSLASHES = Dialect(escape="\\")
FIELDS = st.text(alphabet='a"\\,;\n é', max_size=8)


def as_spark_writes(rows, separator):
    """Quotes where a field needs them, and in them backslashes before quotes and backslashes."""

    def field(text):
        if text and not any(sign in text for sign in f'"\n{separator}'):
            return text
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "".join(separator.join(map(field, row)) + "\n" for row in rows)


@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=5),
    separator=st.sampled_from(",;\t"),
    multiline=st.booleans(),
)
def test_what_spark_writes_is_read_back(rows, separator, multiline, tmp_path_factory):
    kept = [row for row in rows if any(row) and (multiline or "\n" not in "".join(row))]
    file = tmp_path_factory.getbasetemp() / "a.csv"
    file.write_bytes(as_spark_writes([("text", "other"), *kept], separator).encode())
    found = read(
        file,
        "csv",
        columns=("text", "other"),
        multiline=multiline,
        dialect=Dialect(separator, "\\"),
    )
    told = [(row["text_0"] or "", row["text_1"] or "") for row in found]
    assert told == kept
    assert quarantined(found) == []


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), max_size=5))
def test_without_an_escape_lines_stay_as_they_are(rows):
    content = io.StringIO()
    csv.writer(content).writerows(rows)
    lines = content.getvalue().splitlines(keepends=True)
    assert list(Dialect(";").rewritten(lines)) == lines


@pytest.mark.parametrize("multiline", [True, False])
def test_broken_quotes_are_named_in_every_dialect(tmp_path, multiline):
    file = tmp_path / "a.csv"
    file.write_text('text;n\n"a \\" b";1\n"open \\";2\nc;3\n"\\\\";4\n')
    found = read(file, "csv", multiline=multiline, dialect=Dialect(";", "\\"))
    assert texts(found) == ['a " b', "c", "\\"]
    (lost,) = quarantined(found)
    assert lost[0] == file.read_text().index('"open')
    assert multiline is (lost[1] == WRONG_QUOTES)


def test_backslashes_outside_of_quotes_and_of_other_dialects_stay(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('text,n\n\\\\server\\x "y" \\",1\n"c:\\new ""z""",2\n')
    assert texts(read(file, "csv", dialect=BACKSLASHES)) == ['\\\\server\\x "y" \\"', 'c:\\new "z"']
    file.write_text('text,n\n"c:\\",1\n')
    assert texts(read(file, "csv")) == ["c:\\"]


def test_a_name_that_tells_of_tabs_is_believed(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tn\n"a;b\t1\n')
    assert texts(read(tmp_path / "a.tsv", "csv", dialect=Dialect(";", "\\"))) == ['"a;b']


@pytest.mark.parametrize("name, sign", [("a.csv", ","), ("a.tsv", "\t")])
def test_two_columns_of_a_wanted_name_are_not_the_first_of_them(tmp_path, name, sign):
    file = tmp_path / name
    file.write_text(sign.join(["text", "other", "text"]) + "\n" + sign.join("abc") + "\n")
    assert quarantined(read(file, "csv")) == [(0, "two columns `text`")]
    # What is not read may be there as often as it likes.
    assert texts(read(file, "csv", columns=("other",))) == ["b"]
    titles = {"format": "csv", "pairs": "title", "title_column": "other"}
    with pytest.raises(InputError, match=rf"{name} cannot be read \(two columns `text`\)"):
        read_rows(None, parse({"corpus": {"inputs": [str(file)], **titles}}).corpus)


@pytest.mark.parametrize(
    "section, given, expected",
    [
        ("corpus", {"csv_separator": ";"}, (";", None)),
        ("embedding", {"csv_separator": "\\t", "csv_escape": "\\"}, ("\t", "\\")),
        ("mining", {"csv_separator": "tab", "csv_escape": '"'}, ("\t", None)),
        ("evaluation", {"csv_separator": "\t"}, ("\t", None)),
    ],
)
def test_settings_of_a_dialect(section, given, expected):
    found = Dialect.of(getattr(parse({section: given}), section))
    assert (found.separator, found.escape) == expected


@pytest.mark.parametrize("given", [";;", "", '"', "\n"])
def test_what_is_no_separator_is_refused(given):
    with pytest.raises(InputError, match=r"is no separator\. Write one character") as raised:
        parse({"corpus": {"csv_separator": given}})
    assert raised.value.key == "corpus.csv_separator"
    with pytest.raises(InputError, match=r"^mining.csv_escape: `ab` is no escape\. Write one"):
        parse({"mining": {"csv_escape": "ab"}})
    for dialect in ({"csv_escape": ","}, {"csv_separator": "|", "csv_escape": "|"}):
        with pytest.raises(
            InputError, match=r"^corpus.csv_escape: it is the separator\. Write one"
        ):
            parse({"corpus": dialect})


@pytest.mark.parametrize(
    "columns, told",
    [
        (["question ", " answer"], "Name one of its columns: `question `, ` answer`"),
        (["\ufeffquestion", "a\tb"], "Name one of its columns: `\ufeffquestion`, `a\tb`"),
        (["a;b"], "Set corpus.csv_separator to `;`: its only column is a;b"),
        (["a\tb"], "Set corpus.csv_separator to `\\t`: its only column is `a\tb`"),
        (["title", "body"], "Name one of its columns: title, body"),
    ],
)
def test_columns_are_shown_as_they_are(columns, told):
    assert column_remedy("corpus.text_column", columns) == told


def test_files_of_an_evaluation_have_a_dialect_of_their_own(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("sentence1;sentence2;score\na;b;1\n")
    columns = ("sentence1", "sentence2", "score")
    with pytest.raises(InputError, match=r"Set evaluation\.csv_separator to `;`"):
        check_file(str(file), PairFiles("evaluation.similarity", columns))
    semicolons = PairFiles("evaluation.similarity", columns, dialect=Dialect(";"))
    check_file(str(file), semicolons)
    assert columns_in(*find_files([str(file)], "csv"), "x", Dialect(";")) == ("csv", columns)


def test_a_table_of_another_dialect_is_another_table(tmp_path):
    (tmp_path / "a.csv").write_text("text\na\n")
    stamps = [
        input_stamps(
            parse(
                {"embedding": {"inputs": [str(tmp_path / "a.csv")], "format": "csv", **dialect}}
            ).embedding
        )
        for dialect in ({}, {"csv_separator": ","}, {"csv_separator": ";"}, {"csv_escape": "\\"})
    ]
    assert stamps[0] == stamps[1]
    assert stamps[0] != stamps[2] != stamps[3]
