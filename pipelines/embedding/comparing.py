"""Has Spark compare the rows of a new table with those of the table before, by key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.embedding.kept_vectors import ROWS_OF_TASK, bring_vectors
from pipelines.embedding.keys import (
    ADDED,
    CHANGED,
    GONE,
    MATCHES,
    MISSING,
    NEW,
    OLD,
    STAYS,
    TWICE,
    UNCHANGED,
    KeyScan,
    match_batches,
    scan_keys,
)
from pipelines.embedding.parts import RowRange
from pipelines.embedding.plan import KEY_COLUMN, STAGED, Changes
from pipelines.embedding.store import VectorTable
from pipelines.errors import InputError
from pipelines.files.locations import Location
from pipelines.settings import EmbeddingSettings
from pipelines.spark.frames import Scratch, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_DDL = "key string, side tinyint, position long, digest binary"
MAX_TASKS = 1024
"""That read keys."""


def compare_rows(
    session: SparkSession,
    parts: Sequence[RowRange],
    settings: EmbeddingSettings,
    before: VectorTable | None,
    folder: Location,
) -> tuple[dict[str, int], Changes]:
    """Compares keys and texts, and brings the vectors of equal ones to their parts.

    Args:
        session: Its executors read, compare and write.
        parts: Of the new table, all of them, in order.
        settings: Name the columns of keys and texts.
        before: The table whose vectors may be kept, if there is one.
        folder: Where each part finds its vectors; is made if there are any.

    Returns:
        The rows that keep their vectors, by the name of their part; and what has changed. Parts
        that are kept as they are count as unchanged.

    Raises:
        InputError: A key is missing, or there twice.
    """
    assert settings.key_column is not None, "rows are compared by key"
    scans = key_scans(parts, settings.key_column, settings.text_column, before)
    rows = sum(scan.rows for scan in scans)
    with Scratch(folder.with_name("_keys")) as scratch:
        numbers = session.range(0, len(scans), 1, min(len(scans), MAX_TASKS))
        found = numbers.mapInArrow(partial(_scan, scans=scans), ROWS_DDL)
        together = found.repartition(-(-rows // ROWS_OF_TASK), "key")
        totals = Totals(("kind",), ("rows",))
        matches, counted = scratch.keep_arrow(together, match_batches, MATCHES, totals)
        counts = dict(zip(counted["kind"].to_pylist(), counted["rows"].to_pylist(), strict=True))
        if counts.keys() & {TWICE, MISSING}:
            raise _refusal(matches, parts, settings.key_column)
        changes = Changes(*(counts.get(kind, 0) for kind in (UNCHANGED, CHANGED, ADDED, GONE)))
        in_parts = sum(scan.rows for scan in scans if scan.side == STAYS)
        if before is None or changes.unchanged == in_parts:
            return {}, changes
        return bring_vectors(matches, before, parts, folder), changes


def key_scans(
    parts: Sequence[RowRange], key: str, text: str, before: VectorTable | None
) -> list[KeyScan]:
    """What is read to compare tables.

    Args:
        parts: Of the new table, in order.
        key: Its column of keys, and that of the table before.
        text: Its column of texts.
        before: The table before, if vectors may be kept; its column of texts has its own name.
    """
    firsts = accumulate((part.rows for part in parts), initial=0)
    scans = []
    for first, part in zip(firsts, parts, strict=False):
        if part.copied_from is not None:
            scans.append(KeyScan(STAYS, part.copied_from, 0, part.rows, first, key, None))
        else:
            compared = None if before is None else text
            scans.append(
                KeyScan(NEW, part.path, part.start, part.stop, first, key, compared, part.constants)
            )
    kept = {part.name for part in parts if part.copied_from is not None}
    scans += [
        KeyScan(OLD, file.path, 0, file.rows, file.first, key, before.text)
        for file in (before.files if before is not None else ())
        if file.path.stem not in kept and before is not None
    ]
    return scans


def _scan(
    batches: Iterator[pa.RecordBatch], *, scans: Sequence[KeyScan]
) -> Iterator[pa.RecordBatch]:
    """The rows of the scans whose numbers are in `id`. Runs on an executor."""
    numbers = (number for batch in batches for number in batch.column("id").to_pylist())
    return scan_keys(scans[number] for number in numbers)


def _refusal(matches: DataFrame, parts: Sequence[RowRange], key: str) -> InputError:
    """Names the first row whose key cannot be used."""
    unusable = matches.where(f"kind in ('{TWICE}', '{MISSING}')")
    row = unusable.orderBy("second").limit(1).collect()[0]
    remedy = "name a column that has another value in each row, and no nulls"
    place = _place(row["second"], parts)
    if row["kind"] == MISSING:
        return InputError(KEY_COLUMN, f"`{key}` is null in {place}", remedy)
    other = _place(row["first"], parts)
    return InputError(KEY_COLUMN, f"`{key}` is `{row['key']}` in {other} and in {place}", remedy)


def _place(position: int, parts: Sequence[RowRange]) -> str:
    """A row by its file and its number there, which of other formats says nothing."""
    firsts = list(accumulate((part.rows for part in parts), initial=0))
    number = int(np.searchsorted(firsts[:-1], position, side="right")) - 1
    part = parts[number]
    if part.path.parent.name == STAGED:
        return "a row of the table"
    return f"row {part.start + position - firsts[number]} of {part.path}"
