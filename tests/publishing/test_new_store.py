"""A new store is one file and one line in the catalog; executors write it as any other."""

from __future__ import annotations

import json
import sqlite3

import numpy as np
import pytest
from test_publish import rows_of
from vector_tables import VectorTables

import pipelines
from pipelines.catalog import STORES
from pipelines.errors import InputError
from pipelines.publishing import publish as job
from pipelines.settings.load import parse
from pipelines.spark import tasks


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setitem(STORES.entries, "sqlite", "sqlite_store:STORE")
    address = str(tmp_path / "vectors.db")
    settings = {"store": "sqlite", "address": address, "collection": "texts", "connections": 2}
    return parse({"publish": settings, "embedding": {"output": str(tmp_path / "embedded")}})


@pytest.fixture
def table(tmp_path):
    return VectorTables(tmp_path / "embedded")


def rows_in(address: str) -> dict:
    with sqlite3.connect(address) as database:
        found = database.execute(
            "SELECT key, vector, payload FROM vectors JOIN aliases USING (name) WHERE alias='texts'"
        ).fetchall()
    return {
        key: (np.frombuffer(vector, np.float32), json.loads(text)) for key, vector, text in found
    }


def check(table: VectorTables, address: str) -> None:
    found, expected = rows_in(address), table.expected()
    assert {*found} == {*expected}
    for key, (vector, payload) in expected.items():
        np.testing.assert_array_equal(found[key][0], vector)
        assert found[key][1] == payload


def test_it_is_written_by_this_process_where_rows_are_few(config, table):
    table.write(rows_of(50))
    made = pipelines.publish(config)
    assert (made.collection, made.rows) == ("texts_01234567", 50)
    check(table, config.publish.address)


def test_executors_write_it(spark, config, table, monkeypatch):
    monkeypatch.setattr(job, "HERE_ROWS", 0)
    monkeypatch.setattr(job, "LEAST_TASK_ROWS", 10)
    ran = []
    collect = tasks.collect_from_tasks
    monkeypatch.setattr(
        job, "collect_from_tasks", lambda *given: ran.append(len(given[1])) or collect(*given)
    )
    table.write(rows_of(250, at_3=None), part_rows=100)
    made = pipelines.publish(config)
    assert (made.rows, made.upserted, made.left_out) == (249, 249, 1)
    check(table, config.publish.address)
    table.write(rows_of(200, at_5="changed"), part_rows=100)
    made = pipelines.publish(config)
    assert (made.rows, made.upserted, made.deleted) == (200, 2, 50)
    check(table, config.publish.address)
    assert ran == [2, 2, 2]


def test_its_refusals_are_those_of_the_file(config, table):
    table.write(rows_of(1))
    with pytest.raises(
        InputError, match=r"^publish\.address: /no/where cannot be opened .*\. Name"
    ):
        pipelines.publish(config.changed("publish", address="/no/where"))
