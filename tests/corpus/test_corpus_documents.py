"""Documents are cut into pieces where text ends, and keep their titles."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from range_cases import quarantined, read, texts

from pipelines.corpus.readers.rows import line_cut, paragraph_cut


def summary(rows):
    return [(row["title"], row["place"], row["text_0"]) for row in rows]


def written(folder, name, content):
    (folder / name).write_bytes(content.encode())
    return folder / name


def test_markdown_headings_begin_pieces_and_give_titles(tmp_path):
    path = written(
        tmp_path,
        "a.md",
        "\n# One #\n\ntext\n\n### Third level\nmore\n## Two\r\ntext\n"
        "```\n# a comment\n```\n#no heading\n\n# Other book\nend",
    )
    rows = read(path, "markdown")
    assert summary(rows) == [
        ("One", 0, "\n# One #\n\ntext\n\n### Third level\nmore\n"),
        ("One", 1, "## Two\r\ntext\n```\n# a comment\n```\n#no heading\n\n"),
        ("Other book", 2, "# Other book\nend"),
    ]
    assert {row["document"] for row in rows} == {f"{path}#0"}
    assert [row["offset"] for row in rows] == [0, 37, 83]


def test_the_first_heading_is_the_title_where_none_is_of_level_one(tmp_path):
    path = written(tmp_path, "a.md", "Before.\n\n### Third\ntext\n## Second\ntext")
    assert [row["title"] for row in read(path, "markdown")] == ["Third", "Third"]
    path = written(tmp_path, "b.md", "No heading at all.")
    assert [row["title"] for row in read(path, "markdown")] == [None]


def test_plain_text_has_no_titles(tmp_path):
    path = written(tmp_path, "a.txt", "# One\n\ntext")
    assert summary(read(path, "text")) == summary(read(path, "documents"))
    assert summary(read(path, "text")) == [(None, 0, "# One\n\ntext")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_long_text_is_cut_at_paragraphs(tmp_path, end):
    paragraphs = [f"{n} " + "word " * 400 + end + "more " * 100 for n in range(300)]
    content = (2 * end).join(paragraphs)
    path = written(tmp_path, "a.txt", content)
    rows = read(path, "text")
    assert "".join(texts(rows)) == content
    assert [row["place"] for row in rows] == list(range(len(rows)))
    assert all(row["text_0"].endswith(2 * end) for row in rows[:-1])
    assert all(50_000 < len(row["text_0"]) <= 65536 for row in rows[:-1])
    assert rows[1]["offset"] == rows[0]["bytes"] == len(rows[0]["text_0"])


def test_a_long_file_is_several_documents(tmp_path):
    lines = [f"Line number {n}.\n" for n in range(100)]
    path = written(tmp_path, "a.txt", "".join(lines))
    rows = read(path, "text", document=600)
    documents = list(dict.fromkeys(row["document"] for row in rows))
    begins = [int(document.partition("#")[2]) for document in documents]
    assert len(begins) == 3 and begins[0] == 0
    assert all(600 * n <= begin < 620 * n for n, begin in enumerate(begins[1:], start=1))
    assert [row["place"] for row in rows] == [0] * len(rows)
    assert "".join(texts(rows)) == "".join(lines)


WIKI = (
    '<doc id="1" url="u?a=b" title="Tom &amp; the &quot;Jerry&quot;">\nTom\n\nText of <doc it.\n\n'
    '</doc>\n<doc id="2" url="u" title="The "X" Files">\nThe "X" Files\n</doc>\n'
    '<doc id="3" title="Old order" url="u">\n\n</doc>\n'
)


def test_wikiextractor_documents(tmp_path):
    path = written(tmp_path, "wiki_00", WIKI)
    rows = read(path, "wikiextractor")
    assert summary(rows) == [
        ('Tom & the "Jerry"', 0, "\nTom\n\nText of <doc it.\n\n"),
        ('The "X" Files', 0, '\nThe "X" Files\n'),
        ("Old order", 0, "\n\n"),
    ]
    assert [row["offset"] > int(row["document"].split("#")[1]) for row in rows] == [True] * 3
    assert sum(row["bytes"] for row in rows) == len(WIKI)
    assert summary(read(path, "documents")) == summary(rows)


def test_a_missing_end_and_text_outside_of_documents(tmp_path):
    path = written(
        tmp_path,
        "wiki_00",
        'before\n<doc id="1" title="A">\na\n<doc id="2" title="B">\nb\n</doc>\nbetween\n'
        '<doc id="3" title="C"></doc>\n<doc id="4" title="D">\nd',
    )
    rows = read(path, "wikiextractor")
    kept = [row for row in rows if row["quarantined"] is None]
    assert summary(kept) == [("A", 0, "\na\n"), ("B", 0, "\nb\n"), ("C", 0, ""), ("D", 0, "\nd")]
    assert [reason for _, reason in quarantined(rows)] == ["outside of <doc>"] * 2
    assert sum(row["bytes"] for row in rows) == path.stat().st_size


def test_long_articles_are_cut_at_lines(tmp_path):
    lines = [f"Line {n} " + "word " * 50 + "\n" for n in range(1000)]
    path = written(tmp_path, "wiki_00", '<doc id="1" title="A">' + "".join(lines) + "</doc>\n")
    rows = read(path, "wikiextractor")
    assert "".join(texts(rows)) == "".join(lines)
    assert all(60_000 < len(row["text_0"]) <= 65536 for row in rows[:-1])
    json_path = written(tmp_path, "wiki_01", json.dumps({"title": "A", "text": "".join(lines)}))
    in_json = read(json_path, "wikiextractor")
    assert summary(in_json) == summary(rows)
    assert sum(row["bytes"] for row in in_json) == json_path.stat().st_size


def test_the_json_form(tmp_path):
    lines = ['{"id": "1", "title": "A", "text": "Text.\\n"}', "", '{"text": null}', '{"title": 1}']
    lines += ['{"title": [1], "text": "x"}', '{"text": "cut']
    path = written(tmp_path, "wiki_00", "\n".join(lines))
    rows = read(path, "documents")
    kept = [row for row in rows if row["quarantined"] is None]
    assert summary(kept) == [("A", 0, "Text.\n"), (None, 0, None)]
    assert [reason for _, reason in quarantined(rows)] == [
        "no column `text`",
        "column `title` holds a list",
        "not JSON",
    ]
    assert sum(row["bytes"] for row in rows) == path.stat().st_size


def test_documents_are_told_by_name_and_first_bytes(tmp_path):
    forms = {
        "a.md": ("# Title\ntext", "Title"),
        "b.txt": ("# Title\ntext", None),
        "c.txt": ('\n<doc id="1" title="Title">\ntext\n</doc>', "Title"),
        "wiki_00": ('{"title": "Title", "text": "text"}', "Title"),
        "d.txt": ("{{template}} text", None),
    }
    for name, (content, title) in forms.items():
        (row,) = read(written(tmp_path, name, content), "documents")
        assert (row["title"], row["quarantined"]) == (title, None)


@given(st.text("a\n\r ", min_size=9).map(str.encode), st.integers(4, 8))
def test_a_cut_leaves_something_and_halves_no_line_end(data, size):
    for cut in (paragraph_cut(data, size), line_cut(data, size)):
        assert 0 < cut <= len(data)
        assert cut == len(data) or data[cut - 1 : cut] in (b"\n", b"\r")
    cut = line_cut(data, size)
    assert data[cut - 1 : cut + 1] != b"\r\n"


def test_all_four_kinds_of_real_text(shared_data):
    for name in (
        "enwiki-part-03.txt",
        "kowiki-part-00.txt",
        "viwiki-part-00.txt",
        "books-part-02.md",
    ):
        rows = read(shared_data / "raw" / f"{name}.gz", "documents")
        assert not quarantined(rows)
        assert all(row["title"] for row in rows)
        assert max(len(row["text_0"].encode()) for row in rows) <= 65536
        assert sum(row["bytes"] for row in rows) > 5_000_000
