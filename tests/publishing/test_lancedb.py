"""LanceDB: one commit for readers, indexes, and what a restored version knows."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pytest
from publish_stores import STORES, rows_of_lance
from server_stores import ServedStore
from test_publish import OTHER_MODEL, config_of, rows_of, same
from vector_tables import VectorTables

import pipelines
from pipelines.publishing import lancedb as store
from pipelines.publishing.store import Layout, Target
from pipelines.publishing.store import opened as opened_store

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path):
    with STORES["lancedb"](tmp_path) as found:
        yield found


@pytest.fixture
def table(tmp_path):
    made = VectorTables(tmp_path / "embedded")
    made.write(rows_of(300))
    return made


def opened(served) -> lancedb.table.Table:
    return lancedb.connect(served.target.address).open_table("documents")


def test_large_tables_get_indexes_that_find_the_same_rows(served, table, monkeypatch):
    monkeypatch.setattr(store, "LEAST_INDEXED", 300)
    pipelines.publish(config_of(served, table))
    indexes = {tuple(index.columns): index.index_type for index in opened(served).list_indices()}
    assert {*indexes} == {("id",), ("topic",), ("year",), ("embedding",)}
    table.write(rows_of(301, at_5="changed"))
    pipelines.publish(config_of(served, table))
    expected = table.expected()
    for key in (5, 100, 300):
        query = opened(served).search(expected[key][0]).distance_type("cosine").limit(1)
        assert query.to_list()[0]["id"] == key
    same(served, table)


def test_only_the_table_for_readers_is_indexed(served, table):
    layout = Layout(pa.schema({"id": pa.int64(), "embedding": pa.list_(pa.float32(), 1)}), "cosine")
    columns = [pa.array([1, -(2**63)]), pa.array([[1.0], [2.0]], layout.vector.type)]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    with opened_store(store.STORE, served.target) as database:
        database.create("documents_1", layout, "state")
        database.upsert("documents_1", layout, rows)
        database.finish("documents_1", layout)
        made = lancedb.connect(served.target.address).open_table("documents_1")
        assert not made.list_indices()
        database.switch("documents_1")
        database.finish("documents", layout)
        assert [index.columns for index in opened(served).list_indices()] == [["id"]]
        database.delete("documents", layout, pa.array([-(2**63)]))
        assert database.count("documents") == 1


def test_deleted_bytes_go_as_the_guide_says(served, table):
    rows = rows_of(300, at_5="only here")
    table.write(rows)
    pipelines.publish(config_of(served, table))
    table.write(rows[:5] + rows[6:])
    pipelines.publish(config_of(served, table))
    files = [*Path(served.target.address).rglob("*.lance")]
    assert any(b"only here" in path.read_bytes() for path in files if path.is_file())
    pipelines.publish(config_of(served, table, overwrite=True))
    with pytest.warns(UserWarning, match="removes every version except the latest"):
        opened(served).optimize(cleanup_older_than=timedelta(0))
    files = [path for path in Path(served.target.address).rglob("*") if path.is_file()]
    assert not any(b"only here" in path.read_bytes() for path in files)
    same(served, table)


def test_readers_keep_their_version_and_see_the_next_one_whole(served, table):
    pipelines.publish(config_of(served, table))
    reader = opened(served)
    reader.checkout(reader.version)
    table.width = 12
    table.write(rows_of(200), model=OTHER_MODEL)
    pipelines.publish(config_of(served, table))
    assert reader.count_rows() == 300
    reader.checkout_latest()
    assert (reader.count_rows(), reader.schema.field("embedding").type.list_size) == (200, 12)
    assert lancedb.connect(served.target.address).list_tables().tables == ["documents"]


def test_a_restored_version_is_brought_up_to_date(served, table):
    pipelines.publish(config_of(served, table))
    before = opened(served).version
    table.write(rows_of(290, at_1="changed"))
    assert pipelines.publish(config_of(served, table)).deleted == 10
    restored = opened(served)
    restored.checkout(before)
    restored.restore()
    assert opened(served).count_rows() == 300
    made = pipelines.publish(config_of(served, table))
    assert (made.upserted, made.deleted, made.rows) == (1, 10, 290)
    same(served, table)


def test_unindexed_search_is_exact(served, table):
    pipelines.publish(config_of(served, table))
    expected = table.expected()
    query = opened(served).search(expected[7][0]).distance_type("cosine").limit(300).to_list()
    by_hand = sorted(expected, key=lambda key: -float(np.dot(expected[key][0], expected[7][0])))
    assert [row["id"] for row in query][:20] == by_hand[:20]


def test_a_bucket_is_a_folder_too(s3_bucket, table, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT", s3_bucket.options.s3_endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    target = Target("lancedb", f"{s3_bucket.address}/lance", "documents")
    served = ServedStore(target, partial(rows_of_lance, target.address))
    assert pipelines.publish(config_of(served, table)).rows == 300
    same(served, table)
    table.write(rows_of(290, at_3="changed"))
    made = pipelines.publish(config_of(served, table))
    assert (made.upserted, made.deleted) == (1, 10)
    same(served, table)
