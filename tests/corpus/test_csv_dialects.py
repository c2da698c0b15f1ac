"""Files of other separators and escapes are read as what wrote them had it."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_cases import quarantined, read, texts

from pipelines.corpus.readers.csv_parser import WRONG_QUOTES, Dialect
from pipelines.corpus.readers.inputs import column_remedy, find_files
from pipelines.corpus.readers.spark_reader import columns_in, read_rows
from pipelines.errors import InputError
from pipelines.evaluation.pairs import PairFiles, check_file
from pipelines.settings.load import parse
from pipelines.vectors.inputs import input_stamps

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
    assert texts(read(file, "csv", dialect=BACKSLASHES)) == [
        '\\\\server\\x "y" \\"',
        'c:\\new "z"',
    ]
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
    with pytest.raises(InputError, match=r"is no separator, write one character") as raised:
        parse({"corpus": {"csv_separator": given}})
    assert raised.value.key == "corpus.csv_separator"
    with pytest.raises(InputError, match=r"^mining.csv_escape: `ab` is no escape, write one"):
        parse({"mining": {"csv_escape": "ab"}})


@pytest.mark.parametrize(
    "columns, told",
    [
        (["question ", " answer"], "it has `question `, ` answer`"),
        (["\ufeffquestion", "a\tb"], "it has `\ufeffquestion`, `a\tb`"),
        (["question;answer"], "it has question;answer: set corpus.csv_separator to `;`"),
        (["a\tb"], "it has `a\tb`: set corpus.csv_separator to `\\t`"),
        (["title", "body"], "it has title, body"),
    ],
)
def test_columns_are_shown_as_they_are(columns, told):
    assert column_remedy("corpus.text_column", columns) == told


def test_files_of_an_evaluation_have_a_dialect_of_their_own(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("sentence1;sentence2;score\na;b;1\n")
    columns = ("sentence1", "sentence2", "score")
    with pytest.raises(InputError, match=r"set evaluation\.csv_separator to `;`"):
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
