"""Documents as pairs: a title with its text, or a piece of a text with the rest of it."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.funnel import ROWS
from pipelines.corpus.texts import (
    LONGEST_PIECE,
    SHORTEST_PIECE,
    TOO_FEW_WORDS,
    cut_piece,
    document_units,
    shortened,
)
from pipelines.corpus.unit_rows import SCHEMA
from pipelines.settings import CorpusSettings

TEXT = "Valves of the heart open and close with every beat that the muscle makes."
RAW = {
    "level": pa.string(),
    "document": pa.string(),
    "place": pa.int64(),
    "title": pa.string(),
    "text_0": pa.string(),
    "group": pa.string(),
    "unit": pa.string(),
    "score": pa.string(),
    "candidate_scores": pa.list_(pa.string()),
    "reason": pa.string(),
    "rows": pa.int64(),
    "bytes": pa.int64(),
}


def raw(*rows):
    filled = [{"level": ROWS, "rows": 1, "bytes": 9, **row} for row in rows]
    table = [{name: row.get(name) for name in RAW} for row in filled]
    return pa.RecordBatch.from_pylist(table, pa.schema(list(RAW.items())))


def units(*rows, **settings):
    (found,) = document_units(raw(*rows), CorpusSettings(format="documents", **settings))
    assert found.schema.equals(SCHEMA)
    return [(row["anchor"], row["positive"], row["reason"]) for row in found.to_pylist()]


def test_documents_are_counted_by_whether_a_title_stands_for_a_question():
    rows = [
        {"title": "On valves", "text_0": TEXT},
        {"text_0": TEXT},
        # A later part of a document, a title alone, and too few words for a piece.
        {"title": "On valves", "place": 1, "text_0": TEXT},
        {"title": "On valves"},
        {"text_0": "Valves."},
    ]
    (found,) = document_units(raw(*rows), CorpusSettings(format="documents"))
    assert found["titled"].to_pylist() == [1, -1, None, None, None]


def test_a_title_stands_with_the_whole_text():
    (found,) = units({"title": " On  valves", "text_0": f"{TEXT}\n\n{TEXT}"}, max_repeated=1)
    assert found == ("On valves", f"{TEXT} {TEXT}", None)


def test_without_a_title_a_piece_stands_with_the_rest():
    for row in ({"text_0": TEXT}, {"title": "  ", "text_0": TEXT}):
        ((piece, rest, reason),) = units(row)
        assert reason is None
        assert piece in TEXT
        assert sorted(f"{piece} {rest}".split()) == sorted(TEXT.split())


def test_a_later_part_of_a_document_does_not_stand_under_its_title():
    ((piece, _, reason),) = units({"title": "On valves", "place": 1, "text_0": TEXT})
    assert (piece in TEXT, reason) == (True, None)


def test_what_gives_no_pair_says_why():
    found = units(
        {"title": "A title alone"},
        {"title": "A title alone", "text_0": " \n"},
        {"text_0": "Too few words."},
        {"title": "A title", "text_0": "short"},
    )
    assert [reason for _, _, reason in found] == [
        "no text",
        "empty text",
        TOO_FEW_WORDS,
        "too short",
    ]


def test_long_texts_are_cut_and_kept():
    ((_, text, reason),) = units({"title": "On valves", "text_0": TEXT}, max_characters=30)
    assert (text, reason) == ("Valves of the heart open and", None)


@given(st.text(min_size=1), st.integers(1, 40))
def test_a_shortened_text_is_its_beginning(text, most):
    found = shortened(text, most)
    assert text.startswith(found)
    assert len(found) <= most
    assert found == text or len(text) > most


@given(st.lists(st.text("abcß猫", min_size=1, max_size=6), min_size=8, max_size=200))
def test_a_piece_is_of_some_words_and_half_of_the_text_at_most(words):
    text = " ".join(words)
    piece, rest, reason = cut_piece(text)
    assert reason is None
    length = len(piece.split(" "))
    assert SHORTEST_PIECE <= length <= min(LONGEST_PIECE, len(words) // 2)
    assert length + len(rest.split(" ")) == len(words)
    assert any(
        words[:at] + words[at + length :] == rest.split(" ")
        and words[at : at + length] == piece.split(" ")
        for at in range(len(words))
    )
    assert cut_piece(text) == (piece, rest, None)


def test_scripts_without_blanks_are_cut_by_characters():
    text = "心臓の弁は鼓動のたびに開いたり閉じたりして血液の逆流を防いでいる"
    piece, rest, reason = cut_piece(text)
    assert reason is None
    assert piece in text
    assert len(piece) + len(rest) == len(text)
