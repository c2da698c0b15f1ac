"""A table that is brought up to date by Spark: what has changed is made, and nothing else."""

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_rounds import embed_here

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage
from pipelines.files.begun import next_folder
from pipelines.vectors.changes import logs_after
from pipelines.vectors.embed import embed_table
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.index import build_index, has_index, search_index
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import MANIFEST_FILE


@pytest.fixture
def lake(job, lines, tmp_path):
    """A folder of two files; writes files, and makes the configuration of its job."""

    class Lake:
        folder = tmp_path / "lake"
        output = tmp_path / "table"

        def write(self, name: str, rows: dict[int, str | None]) -> None:
            self.folder.mkdir(exist_ok=True)
            columns = {
                "id": pa.array([*rows], pa.int64()),
                "text": [*rows.values()],
                "rows": [len(rows)] * len(rows),
            }
            (self.folder / f"{name}.parquet").unlink(missing_ok=True)
            pq.write_table(pa.table(columns), self.folder / f"{name}.parquet")

        def job(self, **settings):
            known = {"inputs": [str(self.folder)], "key_column": "id", "part_rows": 40}
            return job(**(known | settings))

    made = Lake()
    made.write("a", dict(enumerate(lines[:100])))
    made.write("b", dict(enumerate(lines[100:200], 100)))
    return made


def by_key(folder) -> tuple[pa.Table, np.ndarray]:
    table = pq.read_table(folder).sort_by("id")
    return table.drop_columns("embedding"), vectors_of(table["embedding"].drop_null())


def test_new_changed_and_gone_rows(spark, lake, lines, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "pipelines")
    embed_here(lake.job())
    build_index(spark, open_table(lake.output))
    kept = {path.name: path.stat().st_ino for path in lake.output.glob("part-00000-00000-*")}
    # The rows of a file in another order, one of them changed, one gone, one that is new.
    rows = dict(reversed([*enumerate(lines[100:200], 100)])) | {103: "Another text."}
    del rows[150]
    lake.write("b", rows | {777: "A new one."})
    lake.write("c", {1000: "One more.", 1001: None})
    summary = embed_table(spark, lake.job())
    assert (summary.rows, summary.texts, summary.embedded) == (202, 201, 4)
    assert "198 unchanged, 1 changed, 3 new, 1 gone; 3 of 7 parts stay as they are" in caplog.text
    assert {name: (lake.output / name).stat().st_ino for name in kept} == kept
    manifest = storage.read_json(lake.output / MANIFEST_FILE)
    changes = {"unchanged": 198, "changed": 1, "metadata": 0, "new": 3, "gone": 1}
    assert manifest["changes"] == changes
    (log,) = logs_after(lake.output, 0)
    written = {103: "upsert", 150: "delete", 777: "upsert", 1000: "upsert", 1001: "upsert"}
    assert {row["key"]: row["change"] for row in pq.read_table(log.path).to_pylist()} == written
    embed_here(lake.job(output=str(tmp_path / "at-once")))
    (grown, vectors), (at_once, expected) = by_key(lake.output), by_key(tmp_path / "at-once")
    assert grown.equals(at_once)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)

    # The index of the parts that stay has been kept, and only the others' is built.
    table = open_table(lake.output)
    assert not has_index(table)
    index = lake.output / "_index"
    before = {path.name: path.stat().st_ino for path in index.glob("*.usearch")}
    assert len(before) == 3
    build_index(spark, table)
    after = {path.name: path.stat().st_ino for path in index.glob("*.usearch")}
    assert after.items() > before.items()
    queries = np.stack([*vectors[:5], *vectors[-5:]])
    assert (search_index(table, queries, 1).scores > 0.999).all()


def test_keys_are_of_one_row_each(spark, lake, lines, tmp_path) -> None:
    config = lake.job()
    embed_here(config)
    before = by_key(lake.output)
    cases = [
        ({7: "seven again"}, r"`id` is `7` in row 7 of .*a.parquet and in row 0 of .*c.parquet"),
        ({None: "no key"}, r"`id` is null in row 0 of .*c.parquet"),
    ]
    for rows, message in cases:
        lake.write("c", rows)
        with pytest.raises(InputError, match=rf"^embedding.key_column: {message}. Name a col"):
            embed_table(spark, config)
        assert by_key(lake.output)[0].equals(before[0])
        assert {path.name for path in tmp_path.iterdir()} == {"lake", "table"}
    for column, message in {
        "no": r"column `no`\. Name one of its columns: id, ",
        "vec": "holds list<",
    }.items():
        (lake.folder / "c.parquet").unlink()
        pq.write_table(
            pa.table({"id": [1000], "text": ["x"], "rows": [1], "vec": [[1.0]]}),
            lake.folder / "c.parquet",
        )
        only = {"inputs": [str(lake.folder / "c.parquet")], "key_column": column}
        with pytest.raises(InputError, match=rf"^embedding.key_column: .*{message}"):
            embed_table(spark, lake.job(**only))


def test_a_killed_update_leaves_the_table_of_before(spark, lake, monkeypatch) -> None:
    embed_here(lake.job())
    before, files = by_key(lake.output), sorted(lake.output.iterdir())
    lake.write("b", {100: "Other texts.", 101: "In place of many."})

    def dies(*_: object) -> None:
        raise PipelineError("the driver is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.vectors.embed.make_vectors", dies)
        with pytest.raises(PipelineError, match="killed here"):
            embed_table(spark, lake.job())
    assert sorted(lake.output.iterdir()) == files
    assert by_key(lake.output)[0].equals(before[0])
    assert next_folder(lake.output).is_dir()
    assert embed_table(spark, lake.job()).embedded == 2
    assert by_key(lake.output)[0].num_rows == 102
    assert not next_folder(lake.output).exists()


def test_tables_without_a_version_are_compared(spark, job, lines) -> None:
    """Rows that Spark reads have no place that stays; their keys find the vectors."""
    config = job(inputs=["keyed"], format="table", key_column="id", quantise="int8")

    def view(rows) -> None:
        frame = spark.createDataFrame([*rows.items()], "id string, text string")
        frame.repartition(3, "text").createOrReplaceTempView("keyed")

    rows = {f"row {number}": line for number, line in enumerate(lines[:50])}
    view(rows)
    assert embed_table(spark, config).embedded == 50
    view(rows | {"row 7": "Other words.", "row 50": None})
    summary = embed_table(spark, config)
    assert (summary.rows, summary.texts, summary.embedded) == (51, 50, 2)
    assert embed_table(spark, config).embedded == 0
    view(rows | {"row 7": "Other words."})
    spark.sql("select * from keyed union all select * from keyed").createOrReplaceTempView("keyed")
    with pytest.raises(
        InputError, match=r"^embedding.key_column: `id` is `row \d+` in two rows of the table"
    ):
        embed_table(spark, config)
