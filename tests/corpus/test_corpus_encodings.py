"""The encoding of a file is found; what is in none is quarantined line by line."""

# ruff: noqa: RUF001 - real text has such characters

import pytest
from range_cases import quarantined, read, texts

from pipelines.corpus.readers.streams import BinaryError, find_encoding

SAMPLES = {
    "cp1252": "L'été dernier, à Genève, nous avons mangé des crêpes délicieuses chez François.",
    "cp1250": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "cp1251": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "koi8-r": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "shift_jis": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "euc-jp": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗い。",
    "euc-kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "gb18030": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心。",
    "big5": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心。",
}
GERMAN = "Über die Größe der Straßen in München und Köln schrieb er ausführlich."
MARKED = ["utf-8-sig", "utf-16", "utf-32"]


@pytest.mark.parametrize("encoding", SAMPLES)
def test_other_encodings_are_found(tmp_path, encoding):
    lines = [SAMPLES[encoding], "Plain text of no special letters."] * 10
    (tmp_path / "a.txt").write_bytes("\n\n".join(lines).encode(encoding))
    (row,) = read(tmp_path / "a.txt", "documents")
    assert row["text_0"] == "\n\n".join(lines)
    assert row["bytes"] == (tmp_path / "a.txt").stat().st_size


def test_western_text_is_not_taken_for_central_european():
    assert find_encoding([(GERMAN + "\n").encode("cp1252") * 5]).name == "cp1252"
    text = "The café was naïve and the fiancé left “quickly” — it’s over.\n"
    assert find_encoding([text.encode("cp1252") * 5]).name == "cp1252"


@pytest.mark.parametrize("encoding", MARKED)
@pytest.mark.parametrize("kind", ["documents", "jsonl", "csv", "wikiextractor"])
def test_byte_order_marks_decide_and_are_no_text(tmp_path, encoding, kind):
    content = {
        "documents": GERMAN,
        "jsonl": f'{{"text": "{GERMAN}"}}',
        "csv": f'text\r\n"{GERMAN}"\r\n',
        "wikiextractor": f'<doc id="1" title="x">\n{GERMAN}\n</doc>\n',
    }[kind]
    path = tmp_path / "a.txt"
    path.write_bytes(content.encode(encoding))
    # A file that cannot be split is read once.
    (row,) = read(path, kind, split=50 if kind != "csv" else None)
    assert row["text_0"].strip() == GERMAN
    assert row["quarantined"] is None
    assert row["bytes"] == path.stat().st_size


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_western_utf16_without_a_mark(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes(GERMAN.encode(encoding))
    assert texts(read(tmp_path / "a.txt", "text")) == [GERMAN]


def test_offsets_of_wide_files_count_their_own_bytes(tmp_path):
    lines = ["Grüße 👍 지미\n", "second\r\n", "third"]
    content = "".join(f'{{"text": "{line.strip()}"}}{line[len(line.rstrip()) :]}' for line in lines)
    encoded = content.encode("utf-16")
    (tmp_path / "a.jsonl").write_bytes(encoded)
    rows = read(tmp_path / "a.jsonl", "jsonl")
    assert texts(rows) == [line.strip() for line in lines]
    for row in rows:
        beginning = encoded[row["offset"] :].decode("utf-16-le")
        assert beginning.startswith(f'{{"text": "{row["text_0"]}"')


def test_a_wide_file_with_broken_characters(tmp_path):
    half_a_pair = "\ud83d".encode("utf-16-le", "surrogatepass")
    content = "\ufeffgood\n\nbad ".encode("utf-16-le") + half_a_pair + "\nfine".encode("utf-16-le")
    (tmp_path / "a.txt").write_bytes(content + b"\n")
    rows = read(tmp_path / "a.txt", "text")
    assert texts(rows) == ["good\n\n"]
    where = content.index(half_a_pair)
    assert quarantined(rows) == [
        (2 + 2 * len("good\n\n"), f"not UTF-16-LE at byte {where}"),
        (where + 4, f"not UTF-16-LE at byte {len(content)}"),
    ]


def test_a_stray_byte_costs_its_line_alone(tmp_path):
    lines = ["Die Größe.", "Eine Zeile mit \udcff darin.", "", "Grüße aus Köln."]
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    (tmp_path / "a.txt").write_bytes(content)
    rows = read(tmp_path / "a.txt", "text")
    assert texts(rows) == ["Die Größe.\n", "\nGrüße aus Köln."]
    where = content.index(b"\xff")
    assert quarantined(rows) == [(content.index(b"Eine"), f"not UTF-8 at byte {where}")]
    assert [row["place"] for row in rows] == [0, None, 1]
    assert sum(row["bytes"] for row in rows) == len(content)


def test_a_stray_byte_in_ascii_does_not_make_it_western(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"The first line.\nbroken \xff line\nThe last line.")
    rows = read(tmp_path / "a.txt", "text")
    assert texts(rows) == ["The first line.\n", "The last line."]
    assert quarantined(rows) == [(16, "not UTF-8 at byte 23")]


def test_some_western_lines_in_much_utf8_are_quarantined(tmp_path):
    lines = ["Grüße aus Köln.".encode()] * 20 + ["Straße".encode("cp1252")] * 3
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    rows = read(tmp_path / "a.txt", "text")
    assert len(quarantined(rows)) == 3
    assert len(texts(rows)) == 1


def test_letters_that_come_late_in_a_long_file_are_found(tmp_path):
    early = b"Plain text of no special letters.\n" * 40_000
    late = (SAMPLES["koi8-r"] + "\n").encode("koi8-r") * 5_000
    (tmp_path / "a.txt").write_bytes(early + late)
    rows = read(tmp_path / "a.txt", "text", split=1 << 20, document=1 << 20)
    assert not quarantined(rows)
    assert "".join(texts(rows)) == (early + late).decode("koi8-r")


def test_a_line_that_is_not_in_the_other_encoding(tmp_path):
    good = (SAMPLES["shift_jis"] + "\n").encode("shift_jis")
    (tmp_path / "a.txt").write_bytes(good * 3 + b"\x81 \n" + good)
    rows = read(tmp_path / "a.txt", "text")
    assert quarantined(rows) == [(3 * len(good), f"not cp932 at byte {3 * len(good)}")]
    assert "".join(texts(rows)) == 4 * (SAMPLES["shift_jis"] + "\n")


def test_nuls_are_taken_out_and_are_not_fatal(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"A text\0 with some NUL\0 in it.\n")
    assert texts(read(tmp_path / "a.txt", "text")) == ["A text with some NUL in it.\n"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\\u0000b", "t\\u0000": "x"}')
    assert texts(read(tmp_path / "a.jsonl", "jsonl")) == ["ab"]


def test_bytes_that_are_no_text():
    with pytest.raises(BinaryError):
        find_encoding([b"\x89PNG\r\n\x1a\nIHDR"])
    assert find_encoding([]).name == "utf-8"
