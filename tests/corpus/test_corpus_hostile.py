"""Files made to cost: time and memory grow with what is read, and no faster."""

import bz2
import gzip
import html
import lzma
import random
import time
import tracemalloc

import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from range_cases import quarantined, read, texts

from pipelines.corpus.cleaning.prose import split_paragraphs, summary_pair
from pipelines.corpus.cleaning.rules import clean, segment, unescape
from pipelines.corpus.readers import docstrings, streams
from pipelines.corpus.readers.csv_files import WRONG_QUOTES
from pipelines.corpus.readers.formats import Columns, Wanted
from pipelines.corpus.readers.ranges import read_splits

SIZES = (25_000, 100_000)
"""Bytes of input. What is quadratic takes sixteen times as long for the second."""
MAX_GROWTH = 9
"""Half-way between four and sixteen, so that neither noise nor a busy machine decides."""
MIN_SECONDS = 0.05
"""What is faster than this for the longer input grows with nothing that matters."""


def grows_too_fast(work, make):
    """Whether the CPU time of work grows faster than its input."""

    def seconds(given_):
        start = time.process_time()
        work(given_)
        return time.process_time() - start

    short, long = SIZES
    given_ = make(short)
    limit = max(MIN_SECONDS, MAX_GROWTH * min(seconds(given_) for _ in range(2)))
    given_ = make(long)
    # Of two tries the faster counts; the second is made only where the first one is too slow.
    return all(seconds(given_) > limit for _ in range(2))


def filled(start, part, end=""):
    return lambda size: start + part * (size // len(part)) + end


FILES = {
    "quotes that open again in each line": ("a.csv", filled("text\n", 'a","\n')),
    "quotes that open again, and close": ("a.csv", filled("text,b\n", 'a","\n', '"\n')),
    "quotes that open again, and break": ("a.csv", filled("text,b\n", 'a","\n', '"x\n')),
    "a quote that is never closed": ("a.csv", filled('text\n"', "x\n")),
    "fields without text": ("a.tsv", filled("text\n", "\t")),
    "beginnings of documents in a line": ("wiki_00", filled('<doc title="a">\n', "<doc ")),
    "beginnings of titles": ("wiki_00", filled("<doc ", 'title="', '">\n')),
    "ends of titles": ("wiki_00", filled('<doc title="', '" a', '">\n')),
    "ends of documents": ("wiki_00", filled('<doc title="a">\n', "</doc>")),
    "headings": ("a.md", filled("", "### a\n")),
    "lines that end with CR and are no UTF-8": ("a.txt", filled("é" * 999, "\xff\r")),
    "one long line": ("a.txt", filled("", "a ")),
    "nested lists": ("a.jsonl", filled("", "[")),
    "digits": ("a.jsonl", filled('{"text": ', "1", "}")),
}
KINDS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".md": "markdown", ".txt": "text"}


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_twice_as_long_takes_twice_as_long(tmp_path, name):
    file, make = FILES[name]
    path = tmp_path / file

    def written(size):
        head, _, tail = make(size).partition("\xff\r")
        path.write_bytes((head + _ + tail).encode("latin-1" if "\xff" in tail else "utf-8"))
        return path

    kind = KINDS.get(path.suffix, "wikiextractor")
    assert not grows_too_fast(lambda file: read(file, kind), written)


TEXTS = {
    "roles": filled("A sentence of words. ", ":a"),
    "colons": filled("A sentence of words. ", ":", " and some more words"),
    "letters of a role": filled(":", "a"),
    "letters of a tag": filled("<", "a"),
    "spaces": filled("A sentence of words. `", " ", "x and some more words."),
    "spaces in a line": filled("A sentence of words.", " ", "x and some more words."),
    "quotes": filled("", " “a"),
    "brackets": filled("", " (a."),
    "full stops": filled("A sentence of words. ", "a."),
    "marks": filled("a", "\u0301\u0323"),
    "links": filled("A sentence of words. ", "[a]("),
    "references": filled("A sentence of words. ", "&#1;"),
    "a long reference": filled("A sentence of words. &#", "1"),
    "blank lines": filled("", "\n \n", "a"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_twice_as_long_takes_twice_as_long(name):
    def work(text):
        (cleaned,) = clean(pa.array([text], pa.string())).to_pylist()
        summary_pair(text)
        for paragraph, _ in split_paragraphs(cleaned):
            list(segment("en", paragraph))

    assert not grows_too_fast(work, TEXTS[name])


@pytest.mark.parametrize("part", ["\n", "elif 1:\n  pass\n"])
def test_a_source_twice_as_long_takes_twice_as_long(tmp_path, part):
    file = docstrings.SourceFile(str(tmp_path), "a.py")
    is_code = part.startswith("elif")

    def written(size):
        rest = part * (min(size, 15_000) // len(part) if is_code else size)
        text = f'"""One."""\nif 1:\n  pass\n{rest}' if is_code else f'"""{rest}One."""\n'
        (tmp_path / "a.py").write_text(text)
        return file

    assert not grows_too_fast(docstrings.file_docstrings, written)
    assert docstrings.file_docstrings(file) == (
        [docstrings.Docstring("a.py::<module>", "One.")],
        None,
    )


def test_a_source_that_is_too_long_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(docstrings, "_LARGEST_SOURCE", 1 << 20)
    (tmp_path / "a.py").write_text('"""One."""\n' + "#" * (1 << 20))
    found = docstrings.file_docstrings(docstrings.SourceFile(str(tmp_path), "a.py"))
    assert found == ([], "longer than 1 MB")


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", PACKERS)
def test_what_a_few_bytes_unpack_to_is_never_held(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix](bytes(48 << 20).replace(b"\0", b"a")))
    size = 0
    tracemalloc.start()
    for chunk in streams.read_chunks(path):
        assert len(chunk) <= 4 * streams.CHUNK
        size += len(chunk)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 48 << 20
    assert most < 16 << 20


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_file_of_many_small_members_is_one_stream_of_large_chunks(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACKERS[suffix](b"0123456789") * 3000 + bytes(7))
    assert list(streams.read_chunks(path)) == [b"0123456789" * 3000]


def test_a_file_that_unpacks_to_far_too_much_is_read_up_to_there(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "_SMALL_ENOUGH", 1 << 22)
    path = tmp_path / "a.txt.bz2"
    path.write_bytes(bz2.compress(b"word\n" * (1 << 20)))
    rows = read(path, "text")
    ((_, reason),) = quarantined(rows)
    assert reason == "a .bz2 that unpacks to more than 1000 times its size"
    assert 3 << 20 < sum(map(len, texts(rows))) <= 1 << 22


def as_defined(lines, most, width):
    """What becomes of the lines of a CSV file, parsed anew wherever a record may begin.

    Yields (first line, line after the last, fields), with None for a line that is given up.
    """
    import csv

    start = 0
    while start < len(lines):
        reader = csv.reader(lines[start:], strict=True)
        try:
            fields = next(reader)
        except csv.Error:
            fields = None
        end = start + reader.line_num
        if fields is not None and end - start > 1:
            size = sum(len(line.encode()) for line in lines[start:end])
            fields = fields if len(fields) == width and size <= most else None
        end = start + 1 if fields is None else end
        yield start, end, fields
        start = end


CSV_PARTS = st.sampled_from(['"', '"', '"', ",", "a", "\n", "\n", "\r", "\r\n", 'a","\n', '""'])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(CSV_PARTS, max_size=40),
    chunk=st.integers(1, 20),
    most=st.integers(20, 60),
    width=st.integers(1, 3),
)
def test_quotes_are_read_as_defined(tmp_path, parts, chunk, most, width):
    header = ",".join(["text", "b", "c"][:width])
    content = header + "\n" + "".join(parts)
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode())
    lines = content.encode().splitlines(keepends=True)
    if any(len(line) > most for line in lines):
        return
    expected = []
    for start, _, fields in as_defined([line.decode() for line in lines], most, width):
        offset = sum(map(len, lines[:start]))
        if fields is None:
            expected.append((offset, WRONG_QUOTES, None))
        elif fields and len(fields) != width:
            expected.append((offset, "not as many fields as the header", None))
        elif fields:
            expected.append((offset, None, fields[0] or None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        rows = read(path, "csv", record=most)
    found = [
        (row["offset"], row["quarantined"], None if row["quarantined"] else row["text_0"])
        for row in rows
    ]
    assert found == expected[1:]
    if rows:
        assert sum(row["bytes"] for row in rows) == len(content)


@pytest.mark.slow
def test_an_open_record_takes_little_more_than_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "CHUNK", 1 << 16)
    path = tmp_path / "a.csv"
    path.write_bytes(b'text\n"' + b"ab\n" * (1 << 18))
    wanted = Wanted("csv", Columns(("text",)), record=8 << 20)
    tracemalloc.start()
    next(read_splits([(str(path), 0, None)], wanted=wanted))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # An object for each line that is held would be 25 MB.
    assert most < 8 << 20


def test_a_long_title_does_not_come_with_every_piece(tmp_path):
    title, line = "title " * 2000, "word " * 20 + "\n"
    for name, head in (
        ("wiki_00", f'<doc id="1" title="{title}">\n'),
        ("wiki_01", f'{{"title": "{title}", "text": "'),
        ("a.md", f"# {title}\n"),
    ):
        text = line * 100 if name != "wiki_01" else line.replace("\n", "\\n") * 100 + '"}'
        (tmp_path / name).write_text(head + text)
        rows = read(tmp_path / name, "documents", piece=500)
        assert len(rows) > 10
        assert {row["title"] for row in rows} == {None}


def test_a_character_reference_of_any_length():
    assert unescape("a &#65;&amp;&#0000066; &#" + "1" * 10_000 + "; b") == "a A&B \ufffd b"
    with pytest.raises(ValueError):
        html.unescape("&#" + "1" * 10_000 + ";")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["a", "B. ", "? ", "“", "”", "(", ")", "\n", " ", "。"]), max_size=80)
)
def test_sentences_are_the_text(parts):
    from pipelines.corpus.cleaning import rules as sentences

    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_WINDOW", 20)
        assert "".join(segment("en", text)) == text
    assert "".join(segment("en", text)) == text


def test_a_long_text_is_cut_as_a_short_one_is():
    chance = random.Random(3)
    words = ["river", "stone", "Mr.", "garden,", "(a", "b)", "e.g.", "3.5"]
    made = [" ".join(chance.choices(words, k=12)) + " end. " for _ in range(500)]
    text = "A beginning. " + "".join(sentence.capitalize() for sentence in made)
    import sentencex

    assert len(text) > 20_000
    assert list(segment("en", text)) == list(sentencex.segment("en", text))


PARTS = st.sampled_from(
    [
        *('"', '""', ",", "\t", "\n", "\r", "\r\n", "\n\n", "text", "text,b\n", "text\tb\n", "a. "),
        *('{"text": "', '"}\n', "[", "{", "1", "\\ud83d", '<doc id="1" title="', '">\n', "</doc>"),
        *("<doc ", "# ", "## a\n", "```", "`", ":a:", "**", "[a](", "&#1;", "<ref>", "é", "한"),
        *(
            "\u0301",
            "\u2028",
            "\0",
            "\ufeff",
            "😀",
            "“",
            "(",
            "  ",
            ">>> ",
            "Args:\n",
            "'''",
            "if 1:\n",
        ),
    ]
).map(str.encode) | st.sampled_from(
    [b"\xff", b"\x80", b"\xe0\xa0", b"\xff\xfe", b"\x1f\x8b", b"PAR1"]
)
ANY_FILE = st.lists(st.tuples(PARTS, st.sampled_from([1, 1, 1, 2, 30])), max_size=25).map(
    lambda parts: b"".join(part * times for part, times in parts)
)
READ_AS = [("a.csv", "csv"), ("a.tsv", "csv"), ("a.jsonl", "jsonl"), ("a.md", "markdown")]
READ_AS += [("a.txt", "text"), ("wiki_00", "wikiextractor"), ("a.txt", "documents")]


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    content=ANY_FILE,
    form=st.sampled_from(READ_AS),
    chunk=st.integers(1, 50),
    record=st.sampled_from([40, 1000]),
    packing=st.sampled_from(sorted(PACKERS)),
)
def test_any_bytes_are_read_whatever_the_chunks(tmp_path, content, form, chunk, record, packing):
    def found(path):
        rows = read(path, kind, record=record, piece=100)
        return [{**row, "file": None, "document": row["document"] and ""} for row in rows]

    name, kind = form
    plain, packed = tmp_path / name, tmp_path / f"{name}{packing}"
    plain.write_bytes(content)
    packed.write_bytes(PACKERS[packing](content))
    whole = found(plain)
    assert found(packed) == whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        assert found(plain) == whole
    (tmp_path / "source.py").write_bytes(content)
    docstrings.file_docstrings(docstrings.SourceFile(str(tmp_path), "source.py"))
    for row in whole:
        summary_pair(row["text_0"] or "")
        list(split_paragraphs(row["text_0"] or "", row["title"]))
