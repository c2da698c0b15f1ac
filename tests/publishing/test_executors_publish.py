"""Executors write to servers: each task has a client and a connection of its own."""

from __future__ import annotations

import pytest
from publish_stores import STORES
from test_publish import publish, rows_of, same
from vector_tables import VectorTables

from pipelines.errors import PipelineError
from pipelines.publishing import publish as job

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "pgvector",
        "opensearch",
        *(
            pytest.param(name, marks=pytest.mark.matrix)
            for name in ("qdrant", "milvus", "elasticsearch")
        ),
    ],
)
def test_executors_write_to_a_server(name, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "HERE_ROWS", 0)
    monkeypatch.setattr(job, "LEAST_TASK_ROWS", 10)
    table = VectorTables(tmp_path / "embedded")
    with STORES[name](tmp_path) as served:
        table.write(rows_of(250, at_3=None), part_rows=100)
        made = publish(served, table, monkeypatch, connections=2)
        assert (made.rows, made.upserted, made.left_out) == (249, 249, 1)
        same(served, table)
        table.write(rows_of(200, at_5="changed"), part_rows=100)
        made = publish(served, table, monkeypatch, connections=2)
        assert (made.rows, made.upserted, made.deleted) == (200, 2, 50)
        same(served, table)


def test_the_refusal_of_a_row_reaches_the_user(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "HERE_ROWS", 0)
    table = VectorTables(tmp_path / "embedded")
    with STORES["opensearch"](tmp_path) as served:
        table.write(rows_of(30), part_rows=100)
        served.state.item_failures += [400] * 1000
        with pytest.raises(PipelineError, match=r"publish\.columns: opensearch refused rows \("):
            publish(served, table, monkeypatch)
        served.state.item_failures.clear()
        assert publish(served, table, monkeypatch).rows == 30
        same(served, table)
