"""From raw rows to judged texts and pairs of documents: nothing is lost between the two."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.funnel import FILES, LINES, PARAGRAPHS, ROWS, SENTENCES
from pipelines.corpus.texts import (
    LONGEST_PIECE,
    RUN,
    SHORTEST_PIECE,
    TOO_FEW_WORDS,
    UNITS,
    cut_piece,
    shortened,
    unit_batches,
    unit_of,
)
from pipelines.corpus.unit_rows import SCHEMA, hash_of
from pipelines.settings import CorpusSettings

RAW = {
    "level": pa.string(),
    "file": pa.string(),
    "offset": pa.int64(),
    "document": pa.string(),
    "place": pa.int64(),
    "title": pa.string(),
    "text_0": pa.string(),
    "text_1": pa.string(),
    "negatives": pa.list_(pa.string()),
    "score": pa.string(),
    "candidate_scores": pa.list_(pa.string()),
    "group": pa.string(),
    "unit": pa.string(),
    "reason": pa.string(),
    "quarantined": pa.string(),
    "rows": pa.int64(),
    "bytes": pa.int64(),
}
ARTICLE = (
    "Ada Lovelace\n\nAda Lovelace was an English mathematician. She wrote about an engine.\n"
    "Early life.\nShe was often ill in her early childhood. It lasted for a whole year."
)


def raw(*rows):
    defaults = {"level": ROWS, "rows": 1, "bytes": 10}
    filled = [{name: {**defaults, **row}.get(name) for name in RAW} for row in rows]
    return pa.RecordBatch.from_pylist(filled, pa.schema(list(RAW.items())))


def units(batch, **settings):
    batches = list(unit_batches([batch], CorpusSettings(format="documents", **settings)))
    assert all(batch.schema.equals(SCHEMA) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def texts(rows, level):
    return [row["anchor"] for row in rows if row["level"] == level and row["reason"] is None]


def is_count(row):
    return row["anchor"] is None and row["rows"] > 0


def test_sentences_of_a_document():
    piece = {"document": "a#0", "place": 0, "title": "Ada Lovelace", "text_0": ARTICLE}
    rows = units(raw(piece), pairs="adjacent")
    assert texts(rows, SENTENCES) == [
        "Ada Lovelace was an English mathematician.",
        "She wrote about an engine.",
        "She was often ill in her early childhood.",
        "It lasted for a whole year.",
    ]
    sentences = [row for row in rows if row["level"] == SENTENCES]
    # The title is the first thing, the heading is between the second and the third sentence.
    assert [row["place"] for row in sentences] == [1, 2, 4, 5]
    assert {row["run"] for row in sentences} == {hash_of("a#0/0/0")}
    assert {row["unit"] for row in sentences} == {hash_of("a#0/0")}
    counts = {(row["level"], row["reason"]): row["rows"] for row in rows if is_count(row)}
    assert counts == {
        (ROWS, None): 1,
        (PARAGRAPHS, None): 2,
        (PARAGRAPHS, "title line"): 1,
        (PARAGRAPHS, "heading"): 1,
    }


def test_a_run_ends_after_so_many_texts():
    text = " ".join(f"This is the sentence number {number}." for number in range(RUN + 3))
    piece = {"document": "a#0", "place": 2, "text_0": text}
    rows = units(raw(piece), pairs="adjacent")
    runs = [row["run"] for row in rows if row["level"] == SENTENCES]
    assert runs == [hash_of("a#0/2/0")] * RUN + [hash_of("a#0/2/1")] * 3


def test_pieces_without_prose_are_counted():
    rows = units(
        raw(
            {"document": "a#0", "place": 0, "title": "Ada", "text_0": "Ada\n"},
            {"document": "b#0", "place": 0, "text_0": None},
        ),
        pairs="adjacent",
    )
    counted = {(row["level"], row["reason"], row["rows"]) for row in rows if is_count(row)}
    assert counted == {(ROWS, "no prose", 1), (ROWS, "no text", 1), (PARAGRAPHS, "title line", 1)}
    assert sum(row["bytes"] for row in rows) == 20


def test_titles_with_the_first_paragraph():
    rows = units(
        raw(
            {"document": "a#0", "place": 0, "title": "Ada Lovelace", "text_0": ARTICLE},
            {"document": "a#0", "place": 1, "title": "Ada Lovelace", "text_0": ARTICLE},
            {"document": "b#0", "place": 0, "title": None, "text_0": ARTICLE},
            {"document": "c#0", "place": 0, "title": "Only a title", "text_0": "Only a title"},
        ),
        pairs="title",
    )
    assert rows[0]["anchor"] == "Ada Lovelace"
    assert rows[0]["positive"].startswith("Ada Lovelace was an English mathematician. She")
    assert [row["reason"] for row in rows] == [
        None,
        "not the beginning of a document",
        "no title",
        "no prose",
    ]


def test_lines_and_paragraphs():
    piece = {"document": "a#0", "place": 0, "text_0": "The first line of it\n\nand the second one"}
    settings = CorpusSettings(format="text", pairs="single")
    rows = [row for batch in unit_batches([raw(piece)], settings) for row in batch.to_pylist()]
    assert texts(rows, LINES) == ["The first line of it", "and the second one"]
    assert [row["reason"] for row in rows if row["level"] == LINES] == [None, "empty text", None]
    rows = units(raw({**piece, "text_0": ARTICLE, "title": "Ada Lovelace"}), pairs="single")
    assert len(texts(rows, PARAGRAPHS)) == 2


def test_other_languages_are_dropped():
    german = "Das ist ein ganz gewöhnlicher deutscher Satz, der niemanden überrascht."
    english = "This is a very ordinary sentence in English that surprises nobody at all."
    pieces = raw({"document": "a#0", "place": 0, "text_0": f"{german}\n{english}"})
    rows = units(pieces, pairs="adjacent", languages=("en",))
    assert texts(rows, SENTENCES) == [english]
    dropped = [row for row in rows if row["reason"] == "other language"]
    assert [row["rows"] for row in dropped if is_count(row)] == [1]
    # The example stands for no row.
    assert {(row["anchor"], row["rows"]) for row in dropped if not is_count(row)} == {(german, 0)}
    assert texts(units(pieces, pairs="adjacent", languages=("de",)), SENTENCES) == [german]


def test_what_is_quarantined_and_what_counts_only_go_through():
    rows = units(
        raw(
            {"file": "x", "offset": 7, "quarantined": "not UTF-8", "text_0": "excerpt"},
            {"level": FILES, "reason": "no docstring"},
        ),
        pairs="adjacent",
    )
    assert [(row["file"], row["offset"], row["quarantined"], row["reason"]) for row in rows] == [
        ("x", 7, "not UTF-8", None),
        (None, None, None, "no docstring"),
    ]


def test_hashes_are_spark_s(spark):
    for name in ("", "a#0/2/1", "Grüße, 한국어"):
        found = spark.sql("select xxhash64(:name) as hash", args={"name": name}).first()
        assert hash_of(name) == found["hash"]


@pytest.mark.parametrize(
    ("settings", "unit"),
    [
        ({"format": "parquet", "pairs": "columns"}, "rows"),
        ({"format": "parquet", "pairs": "adjacent"}, "sentences"),
        ({"format": "jsonl", "pairs": "single", "sentences": True}, "sentences"),
        ({"format": "text", "pairs": "single"}, "lines"),
        ({"format": "markdown", "pairs": "single"}, "paragraphs"),
        ({"pairs": "summary"}, "summary"),
    ],
)
def test_units_of_settings(settings, unit):
    assert unit_of(CorpusSettings(**settings)) == unit


@pytest.mark.parametrize("pairs", ["adjacent", "single", "title", "summary", "columns", "triplets"])
@settings(max_examples=30)
@given(rows=st.lists(st.none() | st.text(max_size=80), max_size=5))
def test_every_row_is_accounted_for(pairs, rows):
    pieces = [
        {"document": "d", "place": place, "text_0": text, "text_1": text, "title": "t"}
        for place, text in enumerate(rows)
    ]
    found = units(raw(*pieces), pairs=pairs)
    assert sum(row["rows"] for row in found if row["level"] == ROWS) == len(rows)
    assert sum(row["bytes"] or 0 for row in found) == 10 * len(rows)
    levels = {ROWS, PARAGRAPHS, UNITS[unit_of(CorpusSettings(pairs=pairs))].level}
    assert {row["level"] for row in found} <= levels | {SENTENCES}


TEXT = "Valves of the heart open and close with every beat that the muscle makes."


def documents(*rows, **settings):
    """Anchor, positive and reason of documents, as `pairs: document` has them."""
    found = units(raw(*rows), pairs="document", **settings)
    return [(row["anchor"], row["positive"], row["reason"]) for row in found]


def test_documents_are_counted_by_whether_a_title_stands_for_a_question():
    rows = [
        {"title": "On valves", "text_0": TEXT},
        {"text_0": TEXT},
        # A later part of a document, a title alone, and too few words for a piece.
        {"title": "On valves", "place": 1, "text_0": TEXT},
        {"title": "On valves"},
        {"text_0": "Valves."},
    ]
    found = units(raw(*rows), pairs="document")
    assert [row["titled"] for row in found] == [1, -1, None, None, None]


def test_a_title_stands_with_the_whole_text():
    (found,) = documents({"title": " On  valves", "text_0": f"{TEXT}\n\n{TEXT}"}, max_repeated=1)
    assert found == ("On valves", f"{TEXT} {TEXT}", None)


def test_without_a_title_a_piece_stands_with_the_rest():
    for row in ({"text_0": TEXT}, {"title": "  ", "text_0": TEXT}):
        ((piece, rest, reason),) = documents(row)
        assert reason is None
        assert piece in TEXT
        assert sorted(f"{piece} {rest}".split()) == sorted(TEXT.split())


def test_a_later_part_of_a_document_does_not_stand_under_its_title():
    ((piece, _, reason),) = documents({"title": "On valves", "place": 1, "text_0": TEXT})
    assert (piece in TEXT, reason) == (True, None)


def test_what_gives_no_pair_says_why():
    found = documents(
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
    ((_, text, reason),) = documents({"title": "On valves", "text_0": TEXT}, max_characters=30)
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
