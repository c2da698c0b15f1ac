"""A table that is updated and deleted from by Spark: its logs bring a copy up to date."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_changes import example, log_of, rows_in

from pipelines.corpus.unit_rows import hash_of
from pipelines.files import storage
from pipelines.spark.frames import read_path
from pipelines.vectors.changes import logs_after, read_lineage
from pipelines.vectors.embed import embed_table
from pipelines.vectors.near_duplicates import near_duplicates
from pipelines.vectors.row_deletion import DeletedRows, delete_from_table
from pipelines.vectors.search import search_words
from pipelines.vectors.store import open_table, rows_at
from pipelines.vectors.table_job import MANIFEST_FILE

Rows = Mapping[str, tuple[str | None, str | None]]
"""Text and owner by key."""


@pytest.fixture
def lake(job, tmp_path):
    """Writes a lake of files of some rows each, under new names; makes the configuration."""

    class Lake:
        folder = tmp_path / "lake"
        table = tmp_path / "table"
        written = 0

        def write(self, rows: Rows, size: int = 20) -> None:
            self.folder.mkdir(exist_ok=True)
            for path in self.folder.iterdir():
                path.unlink()
            found = [
                {"id": key, "text": text, "owner": owner} for key, (text, owner) in rows.items()
            ]
            schema = pa.schema([(name, pa.string()) for name in ("id", "text", "owner")])
            for start in range(0, len(found), size):
                self.written += 1
                table = pa.Table.from_pylist(found[start : start + size], schema)
                pq.write_table(table, self.folder / f"{self.written:03d}.parquet")

        def job(self, **settings):
            known = {"inputs": [str(self.folder)], "key_column": "id", "part_rows": 20}
            return job(**(known | settings))

    return Lake()


def test_a_copy_follows_updates_deletions_and_another_model(spark, lake, lines, caplog) -> None:
    follow, copy = example("follow")["follow"], {}
    rows = {f"row {number}": (line, "nobody") for number, line in enumerate(lines[:60])}
    rows["row 7"], rows["row 8"] = (None, "nobody"), (lines[8], "Ada")
    lake.write(rows)
    assert embed_table(spark, lake.job()).changes is None
    at = follow(lake.table, copy, None)
    assert copy == rows_in(lake.table)

    # A new row and a gone one, another text, another owner; a row gets its text, another loses it.
    del rows["row 3"]
    rows |= {"row 60": (lines[60], None), "row 4": ("Other words.", "nobody")}
    rows |= {"row 5": (lines[5], "Ada"), "row 7": (lines[7], "nobody"), "row 9": (None, "nobody")}
    shuffled = [*rows.items()]
    random.Random(0).shuffle(shuffled)
    lake.write(dict(shuffled))
    summary = embed_table(spark, lake.job())
    assert str(summary.changes) == "1 new, 3 changed, 1 with other metadata only, 1 gone"
    changed = [f"row {number}" for number in (4, 5, 60, 7, 9)]
    assert log_of(lake.table, 1) == {"row 3": "delete"} | dict.fromkeys(changed, "upsert")
    at = at_1 = follow(lake.table, copy, at)
    assert copy == rows_in(lake.table)

    # Ada's rows go for good; the log before no longer says to write one.
    deleted = DeletedRows("owner", (hash_of("Ada"),))
    assert delete_from_table(spark, lake.job(), deleted) == 2
    assert log_of(lake.table, 2) == {"row 5": "delete", "row 8": "delete"}
    assert "row 5" not in log_of(lake.table, 1)
    assert {"row 5", "row 8"}.isdisjoint(log_of(lake.table, 0))
    manifest = storage.read_json(lake.table / MANIFEST_FILE)
    assert (manifest["changes"]["unchanged"], manifest["changes"]["gone"]) == (58, 2)
    late = dict(copy)
    at = follow(lake.table, copy, at)
    assert copy == rows_in(lake.table)

    # The input still has them, in files that are named anew.
    lake.write(dict(shuffled), size=25)
    with caplog.at_level("INFO", "pipelines"):
        assert embed_table(spark, lake.job(dimensions=8)).changes.changed == 58
    assert "embedding.dimensions has changed since" in caplog.text
    assert "The job embeds all rows again" in caplog.text
    assert [log.version for log in logs_after(lake.table, 0)] == [1, 2, 3]
    table_id = read_lineage(lake.table).table
    for known, since in ((copy, at), (late, at_1), ({}, None)):
        now = follow(lake.table, known, since)
        assert known == rows_in(lake.table)

    # A key of the column of keys leaves all logs, though its row was gone before.
    deleted = DeletedRows("id", (hash_of("row 3"), hash_of("row 0")))
    assert delete_from_table(spark, lake.job(), deleted) == 1
    assert log_of(lake.table, 0).keys().isdisjoint({"row 0", "row 3"})
    assert (log_of(lake.table, 1)["row 3"], log_of(lake.table, 4)) == (
        "delete",
        {"row 0": "delete"},
    )
    assert read_lineage(lake.table).table == table_id
    assert follow(lake.table, copy, now) == read_lineage(lake.table).made
    assert copy == rows_in(lake.table)
    _no_reader_takes_a_log_for_data(spark, lake.table)


def _no_reader_takes_a_log_for_data(spark, folder: Path) -> None:
    frame = spark.read.parquet(read_path(folder))
    assert (frame.count(), "key" in frame.columns) == (57, False)
    assert len(pd.read_parquet(folder)) == pq.read_table(folder).num_rows == 57
    table = open_table(folder)
    found = search_words(table, ["other words"], 1, None).documents
    assert rows_at(table, found, ["id"])["id"].to_pylist() == ["row 4"]
    assert all(row["right"] < 57 for row in near_duplicates(spark, table, 0.999).collect())
