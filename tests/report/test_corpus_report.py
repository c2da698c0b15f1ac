"""The page of a corpus: whole, self-contained, safe to open, and of what there is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import read

from pipelines.corpus.funnel import FunnelLine, level_lines
from pipelines.files import storage
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import plan_segments
from pipelines.report.comparison import MAX_CHARACTERS, shown
from pipelines.report.corpus_page import text_level, write_corpus_report

HOSTILE = "</li><script>alert('a')</script>\u202egnp.exe\u2066 \ud800 \x00<img src=x onerror=b>"
SECTIONS = ["Corpus", "Lost texts", "Unreadable", "Languages", "Lengths", "Time"]


@pytest.fixture
def prepared(tmp_path):
    lines = [
        *level_lines("rows", ("rows read", 1000), {}, {"rows with text": 990}),
        FunnelLine("rows", "quarantined", "not UTF-8", 10),
        *level_lines(
            "sentences",
            ("sentences", 8000),
            {"too short": 2000, "<b>": 1},
            {"sentences kept": 5999},
        ),
        *level_lines("pairs", ("pairs made", 5000), {}, {"pairs for training": 5000}),
    ]
    storage.write_json(tmp_path / "corpus" / "funnel.json", [line.as_json() for line in lines])
    texts = ["short one", "ok\u00a0\n then", "يقول عنترة"]
    storage.write_text(
        tmp_path / "corpus" / "statistics.json",
        # As any JSON may, this names half of a surrogate pair.
        json.dumps(
            {
                "examples": {"sentences": {"too short": texts, "<b>": [HOSTILE, "long " * 400]}},
                "languages": {"en": 60, "und": 40} | {f"x{n:02}": 1 for n in range(20)},
                "bytes": 40_000_000,
                "quarantine": [
                    {"file": "<i>.txt", "offset": 1234, "reason": "not UTF-8", "rows": 10},
                    {"file": HOSTILE, "offset": None, "reason": "too long", "rows": None},
                ],
            }
        ),
    )
    lengths = [[5, 100], [9, 160], [24, 60]]
    storage.write_json(tmp_path / "tokens" / "lengths.json", {"lengths": lengths})
    LaneManifest(
        lanes=2,
        granule=8,
        rows=20,
        rows_per_part=20,
        segments=plan_segments({8: 100, 16: 160, 24: 60}, 2, 8),
        examples=325,
        left_over={"no whole row": 5, "crowded": 0},
        granules_per_step=2,
        same_group_in_step=3,
        tokens=9000,
        slots=10000,
        vocabulary=99,
        max_length=32,
        paired=True,
        negatives=0,
        scored=False,
        candidates_scored=False,
        teacher=None,
        checksums=("0" * 16,) * 2,
    ).save(tmp_path / "lanes")
    stages = [("corpus", 20.0, False), ("tokens", 5.0, True), ("lanes", 0.5, False)]
    storage.write_json(
        tmp_path / "stages.json",
        [{"stage": name, "seconds": seconds, "kept": kept} for name, seconds, kept in stages],
    )
    return tmp_path


def test_shows_everything_there_is(prepared) -> None:
    path = write_corpus_report(prepared)
    assert path == prepared / "report.html"
    page = read(path)
    assert [heading for heading in page.headings if heading in SECTIONS] == SECTIONS
    for words in (
        "40 MB",  # text read
        "5,999",  # sentences kept
        "320",  # examples in granules
        "dropped: too short",
        "quarantined: not UTF-8",
        "2,000, 25.0 %",
        "يقول عنترة",
        "ok then",
        "not determined",
        "2 others",
        "10.0 % of the slots",
        "5 (no whole row)",
        "2 of 20 granules of 8",
        "Sentences/s",
        "400",  # sentences/s of the corpus stage
        "kept from an earlier preparation",
        "all",
        "1,234",
    ):
        assert words in page.words


def test_hostile_text_stays_text(prepared) -> None:
    path = write_corpus_report(prepared)
    page = read(path)
    assert "img" not in page.seen
    assert all(address.startswith("#") for address in page.addresses)
    # One script, which is the page's own.
    assert path.read_text(encoding="utf-8").count("<script") == 1
    assert shown(HOSTILE) in page.words
    raw = path.read_bytes()
    assert b"\x00" not in raw
    assert "\u202e" not in raw.decode()


@given(st.text())
def test_what_is_shown_is_short_printable_and_encodable(text: str) -> None:
    line = shown(text)
    line.encode("utf-8")
    assert not any(character in line for character in "\n\r\t\x00\x1b\u202e\u2066\ufeff")
    # An escape takes up to six characters in place of one.
    assert len(line) <= 6 * (MAX_CHARACTERS + 1)


def test_text_is_cut_and_spaces_are_joined() -> None:
    assert shown("a\n b\u00a0 c") == "a b c"
    assert shown("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    assert shown("日" * (MAX_CHARACTERS + 1)) == "日" * MAX_CHARACTERS + "…"
    # What Persian and emoji are joined with is no control.
    joined = "می\u200cشود 👩\u200d👧"
    assert shown(joined) == joined


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ("corpus/funnel.json", {"Corpus", "Lost texts"}),
        ("corpus/statistics.json", {"Lost texts", "Unreadable", "Languages"}),
        ("tokens/lengths.json", set()),
        ("lanes/manifest.json", set()),
        ("stages.json", {"Time"}),
    ],
)
def test_leaves_out_what_is_missing(prepared, missing, gone) -> None:
    (prepared / missing).unlink()
    page = read(write_corpus_report(prepared))
    assert [name for name in SECTIONS if name in page.headings] == [
        name for name in SECTIONS if name not in gone
    ]
    assert ("svg" in page.seen) == (missing != "tokens/lengths.json")
    assert ("Padding" in page.words) == (missing != "lanes/manifest.json")


def test_an_empty_folder_gives_a_page(tmp_path) -> None:
    page = read(write_corpus_report(tmp_path))
    assert page.headings == []
    assert tmp_path.name in page.words


def test_the_same_corpus_gives_the_same_page(prepared) -> None:
    first = write_corpus_report(prepared).read_bytes()
    assert write_corpus_report(prepared).read_bytes() == first


def test_texts_are_what_pairs_are_made_of() -> None:
    def levels(*names: str) -> list[dict]:
        return [{"level": name, "kind": "in", "stage": "", "rows": 1} for name in names]

    assert text_level(levels("source files", "rows", "pairs")) == "rows"
    assert text_level(levels("rows", "paragraphs", "sentences", "pairs")) == "sentences"
    assert text_level([]) == "rows"


def test_questions_among_the_training_pairs_are_named(prepared) -> None:
    counts = {"of": "queries", "items": 1500, "seen": 1200}
    sets = {"<users>": counts, "others": counts | {"seen": 0}}
    storage.write_json(prepared / "corpus" / "overlap.json", {"sets": sets})
    page = read(write_corpus_report(prepared))
    said = [words for words in page.words if "training pairs" in words]
    assert len(said) == 1
    assert said[0].startswith("1,200 of 1,500 queries of <users> are among the training pairs")
