"""Texts cut out of documents: which of them are dropped because of others, and their neighbours."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.cleaning.rules import ascii_keys
from pipelines.corpus.dedup import cut_texts
from pipelines.corpus.dedup.cut_texts import (
    NumberedPart,
    known_keys,
    marked_units,
    numbered_texts,
    repeated_texts,
    unknown_keys,
)
from pipelines.corpus.dedup.marks import DUPLICATE, EXCLUDED, NEAR_DUPLICATE
from pipelines.corpus.funnel import SENTENCES
from pipelines.corpus.kept_units import rows_of_sources
from pipelines.corpus.pairs import NO_NEIGHBOUR
from pipelines.corpus.unit_rows import unit_batch
from pipelines.settings import CorpusSettings
from pipelines.spark.parquet_parts import parts_of_files

SETTINGS = CorpusSettings(inputs=("/texts",), format="documents", pairs="adjacent")
KINDS = {reason: number for number, reason in enumerate(cut_texts._REASONS)}


def units(rows, **columns):
    """Units of rows (text, unit, run, place); a text without letters is dropped already."""
    texts, units, runs, places = zip(*rows, strict=True)
    anchors = pa.array(texts, pa.string())
    values = {"unit": units, "run": runs, "place": places}
    return unit_batch(
        len(rows),
        {
            "level": pa.array([SENTENCES] * len(rows)),
            "anchor": anchors,
            "anchor_key": ascii_keys(anchors),
            "reason": pa.array([None if text[:1].isalpha() else "odd" for text in texts]),
            "rows": pa.array([1] * len(rows)),
            **{name: pa.array(column, pa.int64()) for name, column in values.items()},
            **columns,
        },
    )


def written(folder, *batches):
    """The parts of files with a batch each."""
    for number, batch in enumerate(batches):
        pq.write_table(pa.table(batch), folder / f"part-{number}.parquet")
    parts = parts_of_files(sorted(folder.glob("*.parquet")))
    return [NumberedPart(**vars(part), number=number) for number, part in enumerate(parts)]


def marks(part, **rows):
    """What a task gets of a part: its number, and the rows of each reason."""
    packed = [
        (part, KINDS[reason], np.array(found, "<i4").tobytes()) for reason, found in rows.items()
    ]
    parts, kinds, found = zip((part, 0, None), *packed, strict=True)
    return pa.RecordBatch.from_pydict({"part": parts, "kind": kinds, "rows": found})


def marked(parts, *batches, settings=SETTINGS):
    batches = marked_units(batches, parts=parts, settings=settings)
    return [row for batch in batches for row in batch.to_pylist()]


def repeated(parts, blocks=3):
    """The numbers of the texts that are equal to earlier ones, as (part, row)."""
    by_block = {}
    for packed in known_keys(iter(parts), settings=SETTINGS, blocks=blocks):
        for row in packed.to_pylist():
            by_block.setdefault(row["block"], []).append(row["entries"])
    found = set()
    for entries in by_block.values():
        (batch,) = repeated_texts([pa.RecordBatch.from_pydict({"entries": entries})])
        for row in batch.to_pylist():
            assert row["kind"] == KINDS[DUPLICATE]
            found |= {(row["part"], place) for place in np.frombuffer(row["rows"], "<i4").tolist()}
    return found


ROWS = st.lists(
    st.tuples(st.sampled_from(["A", "B", "C", "a.", "D.", "1"]), *[st.integers(-2, 2)] * 3),
    min_size=1,
)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_the_first_of_equal_texts_stays_in_any_part(tmp_path_factory, tables):
    parts = written(tmp_path_factory.mktemp("units"), *map(units, tables))
    first = {}
    for part, rows in enumerate(tables):
        for row, (text, *owners) in enumerate(rows):
            if text != "1":
                first.setdefault(text.lower().strip("."), []).append((*owners, part, row))
    expected = {text[-2:] for texts in first.values() for text in sorted(texts)[1:]}
    assert repeated(parts) == expected


def test_texts_with_unknown_keys_go_to_spark(tmp_path):
    parts = written(tmp_path, units([("Plain", 1, 1, 0), ("Déjà", 1, 1, 1), ("…", 1, 1, 2)]))
    (found,) = unknown_keys(iter(parts), settings=SETTINGS)
    assert found.to_pylist() == [{"unit": 1, "run": 1, "place": 1, "id": 1, "text": "Déjà"}]
    (texts,) = numbered_texts(iter(parts), settings=SETTINGS)
    assert texts["text"].to_pylist() == ["Plain", "Déjà", "…"]


def test_neighbours_have_nothing_between_them(tmp_path):
    texts = ["One", "Two", "- ", "Three", "Four", "Five", "Six", "Seven"]
    runs = [1, 1, 1, 1, 1, 2, 2, 3]
    places = [0, 1, 2, 3, 4, 5, 7, 8]
    rows = list(zip(texts, [9] * 8, runs, places, strict=True))
    parts = written(tmp_path, units(rows))
    found = marked(parts, marks(0))
    assert [row["positive"] for row in found] == ["Two", None, None, "Four", *[None] * 4]
    assert [row["positive_key"] for row in found[:4]] == [
        found[1]["anchor_key"], None, None, found[4]["anchor_key"]
    ]  # fmt: skip
    alone = [NO_NEIGHBOUR] * 3
    assert [row["reason"] for row in found] == [None, None, "odd", None, None, *alone]
    single = SETTINGS.model_copy(update={"pairs": "single", "sentences": True})
    found = marked(parts, marks(0), settings=single)
    assert {(row["positive"], row["reason"]) for row in found} == {(None, None), (None, "odd")}


@pytest.mark.parametrize("together", [True, False])
def test_marks_drop_texts_of_their_part(tmp_path, together):
    rows = [("One", 9, 1, 0), ("Two", 9, 1, 1), ("- ", 9, 1, 2), ("Four", 9, 1, 3)]
    parts = written(tmp_path, units(rows), units(rows))
    first = marks(0, **{EXCLUDED: [0, 1, 2], NEAR_DUPLICATE: [1]})
    second = marks(1, **{DUPLICATE: [3]})
    batches = [pa.concat_batches([first, second])] if together else [first, second]
    reasons = [row["reason"] for row in marked(parts, *batches)]
    assert reasons[:4] == [EXCLUDED, NEAR_DUPLICATE, "odd", NO_NEIGHBOUR]
    assert reasons[4:] == [None, None, "odd", DUPLICATE]


def test_texts_without_the_asked_group_are_no_texts(tmp_path):
    rows = [("One", 9, 1, 0), ("Two", 9, 1, 1), ("One", 9, 2, 0)]
    parts = written(tmp_path, units(rows, group=pa.array(["a", "a", None])))
    grouped = SETTINGS.model_copy(update={"group_column": "topic"})
    found = marked(parts, marks(0, **{DUPLICATE: [2]}), settings=grouped)
    assert [row["reason"] for row in found] == [None, None, None]


def test_units_written_again_keep_their_runs_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.spark.parquet_parts.BATCH_BYTES", 1)
    rows = [(f"Text {place}", 9, 1, place) for place in range(50)]
    (part,) = written(tmp_path, units(rows, source=pa.array([1, 2] * 25)))
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    (found,) = rows_of_sources([numbers], parts=[(part, [2])])
    assert found["place"].to_pylist() == list(range(1, 50, 2))
