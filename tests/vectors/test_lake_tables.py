"""Delta and Iceberg tables in and out of `embed` and `mine`, without their connectors in Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lake_tables import write_delta

import pipelines
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.mining_inputs import check_sources, read_documents, read_pairs, stamps

COLUMNS = ["anchor", "positive", "negative_0", "negative_1"]


class DeltaFolder:
    """A table of Delta Lake in a folder."""

    def __init__(self, folder) -> None:
        self.name = str(folder)

    def append(self, rows: pa.Table) -> None:
        write_delta(self.name, rows, mode="append", partition_by=["lang"])

    def delete(self, condition: str) -> None:
        DeltaTable(self.name).delete(condition)

    def rows(self) -> pa.Table:
        return pa.table(DeltaTable(self.name).scan())


class IcebergTable:
    """A table of Iceberg in a catalog."""

    def __init__(self, lake, name: str) -> None:
        self.lake, self.place, self.name = lake, f"db.{name}", f"lake.db.{name}"

    def append(self, rows: pa.Table) -> None:
        self.lake.create_table_if_not_exists(self.place, rows.schema).append(rows)

    def delete(self, condition: str) -> None:
        self.lake.load_table(self.place).delete(condition)

    def rows(self) -> pa.Table:
        return self.lake.load_table(self.place).scan().to_arrow()


def rows_with(first: int, texts: list[str | None]) -> pa.Table:
    ids = [*range(first, first + len(texts))]
    langs = [("de", "en", None)[key % 3] for key in ids]
    return pa.table({"id": ids, "text": pa.array(texts, pa.string()), "lang": langs})


def ordered(table: pa.Table) -> list:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kinds", ["delta to iceberg", "iceberg to delta"])
def test_a_table_with_vectors_follows_a_table(spark, job, lines, lake, tmp_path, kinds, caplog):
    delta, iceberg = DeltaFolder(tmp_path / "a table"), IcebergTable(lake, "texts")
    is_delta = kinds.startswith("delta")
    source, target = (delta, iceberg) if is_delta else (iceberg, delta)
    source.append(rows_with(0, [*lines[:20], None]))
    config = job(
        inputs=[source.name],
        format="delta" if is_delta else "iceberg",
        key_column="id",
        merge_into=target.name,
        merge_format="iceberg" if is_delta else "delta",
    )

    def update():
        assert not EmbeddingJob.of(config).is_up_to_date()
        summary = embed_table(spark, config)
        assert EmbeddingJob.of(config).is_up_to_date()
        made = ordered(pq.read_table(tmp_path / "table"))
        assert [(row["id"], row["text"]) for row in made] == [
            (row["id"], row["text"]) for row in ordered(source.rows())
        ]
        assert ordered(target.rows().select(["id", "text", "lang", "embedding"])) == made
        return summary

    with caplog.at_level("INFO"):
        assert update().texts == 20
    assert "since the session has no connector" in caplog.text
    assert "merged all rows into" in caplog.text
    source.append(rows_with(50, lines[20:23]))
    source.delete("id = 3")
    with caplog.at_level("INFO"):
        updated = update()
    assert "merged 4 changed keys into" in caplog.text
    assert (updated.texts, updated.embedded) == (22, 3)
    assert embed_table(spark, config).embedded == 0


@pytest.fixture
def job_of_tables(mining_job, lake, pair_file, tmp_path):
    """Mines a Delta table of pairs and an Iceberg table of documents, their first texts."""
    pairs, documents = tmp_path / "pairs", IcebergTable(lake, "documents")
    rows = pq.read_table(pair_file)
    write_delta(pairs, rows)
    documents.append(rows.select(["a"]).rename_columns(["text"]))
    return mining_job(
        inputs=[str(pairs)],
        format="delta",
        documents=[documents.name],
        documents_format="iceberg",
    )


def test_pairs_and_documents_of_tables_are_read(
    spark, mining_job, job_of_tables, pair_file, tmp_path
) -> None:
    """What is mined of them does not depend on where they come from."""
    check_sources(job_of_tables)
    assert all(stamps(job_of_tables).values()), "they have versions"

    def read(frames, asked) -> list[tuple]:
        frame = frames(spark, asked, tmp_path / "staged", tmp_path / "mined")
        return sorted(map(tuple, frame.collect()), key=str)

    assert read(read_pairs, job_of_tables) == read(read_pairs, mining_job())
    texts = pq.read_table(pair_file)["a"].drop_null().to_pylist()
    assert read(read_documents, job_of_tables) == sorted(((text, None) for text in texts), key=str)


@pytest.mark.matrix
def test_pairs_and_documents_of_tables_are_mined(spark, job_of_tables, mined) -> None:
    found, wanted = (
        sorted(pq.read_table(folder).select(COLUMNS).to_pylist(), key=lambda row: [*row.values()])
        for folder in (pipelines.mine(job_of_tables).folder, mined.folder)
    )
    # Its documents are all positives, which are mined without them, too.
    assert found == wanted
