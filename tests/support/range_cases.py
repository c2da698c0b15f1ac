"""Reads files in splits as tasks do, without Spark."""

from __future__ import annotations

from pathlib import Path

from pipelines.corpus.readers.formats import Columns, Wanted
from pipelines.corpus.readers.ranges import read_splits
from pipelines.corpus.readers.rows import ROW_SCHEMA


def read(path: Path, kind: str, *, split: int | None = None, columns=("text",), **more):
    """The rows of a file as dicts; `split` bytes a task, or one task for all.

    `more` are limits, `multiline`, `dialect`, and columns besides those of texts.
    """
    names = {"record", "piece", "document", "multiline", "dialect"} & more.keys()
    options = {name: more.pop(name) for name in names}
    wanted = Wanted(kind, Columns(columns, **more), **options)
    size = path.stat().st_size if path.is_file() else 0
    starts = list(range(0, max(size, 1), split)) if split else [0]
    stops = [*starts[1:], None]
    splits = [(str(path), start, stop) for start, stop in zip(starts, stops, strict=True)]
    found = list(read_splits(splits, wanted=wanted))
    assert all(batch.schema == ROW_SCHEMA for batch in found)
    return [row for batch in found for row in batch.to_pylist()]


def texts(rows):
    """The texts of the rows that could be read."""
    return [row["text_0"] for row in rows if row["quarantined"] is None]


def quarantined(rows):
    """Where and why rows could not be read."""
    return [(row["offset"], row["quarantined"]) for row in rows if row["quarantined"] is not None]
