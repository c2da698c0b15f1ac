"""What could not be read: a table with file, offset and reason, and a limit on how much."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from pipelines.corpus.readers.csv_format import WRONG_FIELDS
from pipelines.corpus.readers.csv_parser import WRONG_QUOTES
from pipelines.errors import InputError
from pipelines.files import storage
from pipelines.files.locations import Location, arrow_source
from pipelines.files.prepared_folder import CorpusFolder
from pipelines.spark.frames import write_single_file

SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
        ("rows", pa.int64()),
        ("excerpt", pa.string()),
    ]
)
"""Of `quarantine.parquet`."""

_MOST_TO_ALLOW = 0.5
_REMEDIES = {
    WRONG_QUOTES: 'mend the input; where it has \\" within quotes, set corpus.csv_escape to \\',
    WRONG_FIELDS: "mend the input; see corpus.csv_separator and corpus.csv_escape",
}

_MAX_WRITTEN = 1_000_000


def write_quarantine(units: DataFrame, folder: Location, *, empty: bool) -> None:
    """Writes `quarantine.parquet`: one row a place that could not be read, sorted.

    Args:
        units: The rows of :mod:`pipelines.corpus.texts`.
        folder: Of the corpus.
        empty: Whether everything could be read, which needs no Spark job.
    """
    if empty:
        with storage.built_file(CorpusFolder(folder).quarantine) as aside:
            pq.write_table(SCHEMA.empty_table(), aside)
        return
    unread = units.where("quarantined is not null").selectExpr(
        "file",
        "offset",
        "quarantined as reason",
        "rows",
        r"trim(both ' \r\n\t' from anchor) as excerpt",
    )
    ordered = unread.orderBy("file", "offset", "reason", "excerpt").limit(_MAX_WRITTEN)
    write_single_file(ordered, CorpusFolder(folder).quarantine)


def check_quarantined(total: int, unread: int, measure: str, units: DataFrame, most: float) -> None:
    """Refuses a corpus of which too much could not be read.

    Args:
        total: All rows or bytes, those that could not be read among them.
        unread: Those that could not be read.
        measure: `rows` or `bytes`.
        units: The rows of :mod:`pipelines.corpus.texts`, to name the first one.
        most: `corpus.max_quarantined`.

    Raises:
        InputError: Naming the first place and its reason.
    """
    if not unread or unread <= most * total:
        return
    first = (
        units.where("quarantined is not null")
        .orderBy("file", "offset", "quarantined")
        .select("file", "offset", "quarantined")
        .first()
    )
    assert first is not None, "there are reasons, so there are rows"
    raise InputError(
        "corpus.max_quarantined",
        f"{unread} of {total} {measure} cannot be read, first {first['file']} at byte "
        f"{first['offset'] or 0} ({first['quarantined']})",
        _remedy(unread / total, first["quarantined"]),
    )


def _remedy(share: float, reason: str) -> str:
    """Say what to do; to allow so much is no cure where little would be left."""
    cause = _REMEDIES.get(reason, "mend the input")
    if share > _MOST_TO_ALLOW:
        return f"{cause}, or name another"
    return f"{cause}, or set it to at least {math.ceil(1000 * share) / 1000}"


def first_places(folder: Location, most: int) -> list[dict[str, Any]]:
    """The first rows of `quarantine.parquet`, without their excerpts.

    Args:
        folder: Of the corpus.
        most: How many.
    """
    columns = [name for name in SCHEMA.names if name != "excerpt"]
    with pq.ParquetFile(arrow_source(CorpusFolder(folder).quarantine)) as file:
        for batch in file.iter_batches(batch_size=most, columns=columns):
            rows: list[dict[str, Any]] = batch.to_pylist()
            return rows
    return []
