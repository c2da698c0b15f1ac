"""However a file is cut, dealt to tasks, packed or chunked, the same records come out."""

import bz2
import csv
import gzip
import json
import lzma
import random
import tracemalloc
from functools import partial

import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from range_cases import quarantined, read, texts

from pipelines.corpus.readers import streams
from pipelines.corpus.readers.formats import Columns, Wanted
from pipelines.corpus.readers.ranges import Split, pack, read_splits, split_file

PACKERS = {
    ".gz": gzip.compress,
    # Small blocks, so that even small files have several.
    ".bz2": partial(bz2.compress, compresslevel=1),
    ".xz": partial(lzma.compress, preset=0),
    ".zst": zstandard.ZstdCompressor().compress,
}
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WORDS = st.sampled_from(
    ["", " ", "a", "Grüße", "지미", "The first one.", "x" * 90, "# One", "## Two", "### Three"]
    + ["```", "</doc>", '<doc id="1" url="u" title="A &amp; B">', '<doc id="2" title="C">', "a\0b"]
    + ['{"text": "one"}', '{"text": 1, "title": null}', "[1]", "{", "k\tv", "text\tother"]
)
CONTENT = st.lists(st.tuples(WORDS, ENDS), max_size=30)
CHECKS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def content_of(lines):
    return "".join(word + end for word, end in lines).encode()


def without_bytes(rows):
    return [{name: value for name, value in row.items() if name != "bytes"} for row in rows]


@pytest.mark.parametrize("kind", ["text", "markdown", "wikiextractor", "documents", "jsonl"])
@CHECKS
@given(lines=CONTENT, split=st.integers(1, 60), chunk=st.integers(1, 50), bad=st.integers(0, 900))
def test_any_split_and_chunk_gives_the_same_records(tmp_path, kind, lines, split, chunk, bad):
    content = content_of(lines)
    # The encoding is of the file, and a byte that is in none is of its line.
    content = content[:bad] + b"\xff" + content[bad:] if bad < len(content) else content
    path = tmp_path / "wiki_00"
    path.write_bytes(content)
    limits = {"record": 60, "piece": 40, "document": 100}
    whole = read(path, kind, **limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        cut = read(path, kind, split=split, **limits)
    assert without_bytes(cut) == without_bytes(whole)


# The encoding is found before the kind counts.
@pytest.mark.parametrize(
    ("kind", "encoding"),
    [
        *((kind, "utf-16") for kind in ("text", "markdown", "wikiextractor")),
        *(("documents", name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be")),
    ],
)
@CHECKS
@given(lines=CONTENT)
def test_the_bytes_of_documents_add_up(tmp_path, kind, encoding, lines):
    content = content_of([("First line of the file.", "\n"), *lines]).decode().encode(encoding)
    if encoding == "utf-16-be":
        content = b"\xfe\xff" + content
    path = tmp_path / "wiki_00"
    path.write_bytes(content)
    rows = read(path, kind, record=60, piece=40, document=100)
    assert sum(row["bytes"] for row in rows) == len(content)
    assert sum(row["rows"] for row in rows) == len(rows) > 0


@pytest.mark.parametrize("suffix", PACKERS)
@CHECKS
@given(lines=CONTENT)
def test_packed_files_are_read_as_plain_ones(tmp_path, suffix, lines):
    content = content_of(lines)
    (tmp_path / "a.md").write_bytes(content)
    packed = tmp_path / f"a.md{suffix}"
    # Two members one behind the other are one file.
    packed.write_bytes(PACKERS[suffix](content[:70]) + PACKERS[suffix](content[70:]))
    rows = read(packed, "documents", record=60, piece=40, document=100)
    plain = read(tmp_path / "a.md", "documents", record=60, piece=40, document=100)
    for row in rows + plain:
        row.pop("file")
        row["document"] = row["document"] and row["document"].partition("#")[2]
    assert rows == plain


def assume_text(path):
    """A file of which more is NULs is taken for something else: see `find_encoding`."""
    content = path.read_bytes()
    assume(content.count(0) < 0.3 * len(content))


FIELDS = st.text("ab,\"\n\r\t 'é\0", max_size=6)


@CHECKS
@given(rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=12), chunk=st.integers(1, 40))
def test_csv_gives_back_what_was_written(tmp_path, rows, chunk):
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["text", "other"])
        writer.writerows(rows)
    assume_text(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "CHUNK", chunk)
        found = read(path, "csv", columns=("other", "text"))
    assert not quarantined(found)
    expected = [tuple(field.replace("\0", "") for field in reversed(row)) for row in rows]
    assert [(row["text_0"] or "", row["text_1"] or "") for row in found] == expected
    if rows:
        assert sum(row["bytes"] for row in found) == path.stat().st_size


@CHECKS
@given(
    rows=st.lists(
        st.tuples(st.text("aé\"' ,", max_size=5), st.text("b\0", max_size=3)), max_size=12
    ),
    split=st.integers(1, 40),
    end=ENDS,
)
def test_tab_separated_records_know_no_quotes(tmp_path, rows, split, end):
    path = tmp_path / "a.tsv"
    path.write_bytes(end.join(["text\tother", *map("\t".join, rows)]).encode() + end.encode())
    assume_text(path)
    found = read(path, "csv", columns=("other", "text"), split=split)
    expected = [tuple(field.replace("\0", "") for field in reversed(row)) for row in rows]
    assert [(row["text_0"] or "", row["text_1"] or "") for row in found] == expected
    assert not quarantined(found)


@CHECKS
@given(
    rows=st.lists(
        st.tuples(st.text("aé\"' ,", max_size=5), st.text("b,", max_size=3)), max_size=12
    ),
    split=st.integers(1, 40),
    end=ENDS,
)
def test_csv_whose_fields_hold_no_line_ends_may_be_cut_anywhere(tmp_path, rows, split, end):
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end)
        writer.writerows([("text", "other"), *rows])
    found = read(path, "csv", columns=("other", "text"), split=split, multiline=False)
    assert without_bytes(found) == without_bytes(read(path, "csv", columns=("other", "text")))


@CHECKS
@given(lines=st.lists(st.tuples(FIELDS, ENDS), max_size=12), split=st.integers(1, 40))
def test_lines_of_csv_are_the_same_however_it_is_cut(tmp_path, lines, split):
    path = tmp_path / "a.csv"
    path.write_bytes(("text,other\n" + "".join(map("".join, lines))).encode())
    assume_text(path)
    wanted = {"columns": ("other", "text"), "multiline": False}
    whole = read(path, "csv", **wanted)
    assert without_bytes(read(path, "csv", split=split, **wanted)) == without_bytes(whole)


def test_small_files_and_big_ones_give_batches_of_bounded_size(tmp_path):
    lines = [json.dumps({"text": f"{number} " + "x" * 3000}) for number in range(4000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    path = str(tmp_path / "a.jsonl")
    splits = [(path, 0, 6_000_000), (path, 6_000_000, None)]
    batches = list(read_splits(splits, wanted=Wanted("jsonl", Columns(("text",)))))
    assert sum(found.num_rows for found in batches) == 4000
    assert all(found.nbytes < 6 << 20 for found in batches)


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv"])
def test_a_file_that_went_away_or_is_none(tmp_path, kind):
    assert quarantined(read(tmp_path / "gone.txt", kind)) == [(0, "vanished")]
    (tmp_path / "folder.txt").mkdir()
    ((offset, reason),) = quarantined(read(tmp_path / "folder.txt", kind))
    assert (offset, reason) == (0, "not readable (Is a directory)")


def test_a_file_that_goes_away_while_it_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 10)

    def splits():
        for start, stop in ((0, 70), (70, None)):
            yield str(path), start, stop
            path.unlink(missing_ok=True)

    found = read_splits(splits(), wanted=Wanted("jsonl", Columns(("text",))))
    rows = [row for batch in found for row in batch.to_pylist()]
    assert texts(rows) == ["a"] * 5
    assert quarantined(rows) == [(70, "vanished")]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("damage", ["cut", "wrong"])
def test_what_comes_before_damage_is_read(tmp_path, suffix, damage):
    # Random digits, so that there are several blocks of compressed data.
    digits = random.Random(1)
    lines = [json.dumps({"text": f"{digits.random()} of line {n}"}) for n in range(15_000)]
    content = "\n".join(lines).encode()
    packed = PACKERS[suffix](content)
    half = len(packed) // 2
    wrong = packed[:half] + bytes(64) + packed[half + 64 :]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed[:half] if damage == "cut" else wrong)
    rows = read(path, "jsonl")
    found = texts(rows)
    # In the wrong half there may be garbage before the damage shows.
    assert len(found) > 100
    assert found[:100] == [json.loads(line)["text"] for line in lines[:100]]
    reasons = [reason for _, reason in quarantined(rows) if reason.startswith("damaged")]
    assert len(reasons) == 1
    assert reasons[0].startswith(f"damaged {suffix} (")
    if damage == "cut":
        assert rows[-1]["quarantined"] == f"damaged {suffix} (it ends too early)"
        assert len(quarantined(rows)) == 1


@pytest.mark.parametrize("suffix", ["", *PACKERS])
@pytest.mark.parametrize("kind", ["documents", "wikiextractor", "jsonl", "csv"])
def test_empty_files_give_nothing(tmp_path, suffix, kind):
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(b"")
    assert read(path, kind) == []
    path.write_bytes(PACKERS.get(suffix, bytes)(b""))
    assert read(path, kind) == []


@pytest.mark.parametrize("kind", ["documents", "wikiextractor", "jsonl", "csv"])
@pytest.mark.parametrize(
    "content",
    [
        b"PAR1 and what follows",
        gzip.compress(b"text"),
        b"%PDF-1.7\nfollows",
        bytes(100),
        random.Random(0).randbytes(5000),
        b"MZ" + bytes(300) + "Text in the middle of it.".encode("utf-16-le") + bytes(200),
    ],
    # What gzip gives holds the time, and processes that share the tests want equal names.
    ids=["parquet", "gzip", "pdf", "nothing", "noise", "program"],
)
def test_a_binary_file_is_quarantined_once(tmp_path, kind, content):
    (tmp_path / "a.txt").write_bytes(content)
    rows = read(tmp_path / "a.txt", kind, split=40)
    assert quarantined(rows) == [(0, "binary")] and len(rows) == 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["documents", "jsonl", "csv"])
def test_one_line_that_is_too_long_is_never_held(tmp_path, kind, packed):
    long = random.Random(2).randbytes(10 << 20).hex().encode()
    line = {"documents": b"%s", "jsonl": b'{"text": "%s"}', "csv": b'"%s"'}[kind]
    content = b"\n".join([b"text" if kind == "csv" else b"", line % b"a", line % long, line % b"b"])
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    place = content.index(line % long)
    del long
    tracemalloc.start()
    rows = read(path, kind, record=1 << 20)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 << 20
    assert [text.strip() for text in texts(rows)] == ["a", "b"]
    assert quarantined(rows) == [(place, "longer than 1 MB")]
    assert all(len(row["text_0"]) <= 200 for row in rows)
    assert sum(row["bytes"] for row in rows) == len(content)


MB = 1 << 20


@given(st.lists(st.integers(0, 64 * MB), min_size=1, max_size=60), st.integers(1, 9))
def test_every_split_is_in_one_task_and_in_order(sizes, cores):
    splits = [Split(str(number), 0, None, size) for number, size in enumerate(sizes)]
    tasks = pack(splits, cores)
    assert [split for task in tasks for split in task] == splits
    assert all(tasks)
    assert len(tasks) >= min(cores, len(splits))
    assert all(sum(split.size for split in task) <= 48 * MB for task in tasks if len(task) > 1)


def test_many_small_files_share_tasks():
    splits = [Split(str(number), 0, None, 1000) for number in range(10_000)]
    assert len(pack(splits, 4)) < 200


def test_only_long_plain_files_are_cut(tmp_path):
    for name in ("a.txt", "b.txt.gz", "c.csv", "d.tsv"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(150 * MB)
    plain, packed, csv, csv_of_lines, tab = (
        list(split_file(tmp_path / name, kind, multiline=multiline))
        for name, kind, multiline in (
            ("a.txt", "text", True),
            ("b.txt.gz", "text", True),
            ("c.csv", "csv", True),
            ("c.csv", "csv", False),
            ("d.tsv", "csv", True),
        )
    )
    ranges = [(0, 64 * MB, 64 * MB), (64 * MB, 128 * MB, 64 * MB), (128 * MB, None, 22 * MB)]
    assert [(split.start, split.stop, split.size) for split in plain] == ranges
    assert [(split.start, split.stop, split.size) for split in csv_of_lines] == ranges
    assert len(tab) == 3
    (tmp_path / "c.csv").rename(tmp_path / "c.csv.gz")
    assert len(list(split_file(tmp_path / "c.csv.gz", "csv", multiline=False))) == 1
    assert [(split.start, split.stop, split.size) for split in packed + csv] == [
        (0, None, 600 * MB),
        (0, None, 150 * MB),
    ]


def test_a_file_that_went_away_is_still_planned(tmp_path):
    assert [split.size for split in split_file(tmp_path / "gone.txt", "text")] == [0]
