"""PostgreSQL: what readers of a view keep, what indexes are used, and errors in one line."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from publish_stores import STORES, postgres_server
from test_publish import OTHER_MODEL, config_of, rows_of, same
from vector_tables import VectorTables

import pipelines
from pipelines.errors import InputError
from pipelines.jobs.publish import plan_publishing
from pipelines.publishing import pgvector
from pipelines.publishing.pgvector import STORE
from pipelines.publishing.store import Layout, Target, opened
from pipelines.publishing.write import connected

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path):
    with STORES["pgvector"](tmp_path) as store:
        yield store


@pytest.fixture
def table(tmp_path):
    made = VectorTables(tmp_path / "embedded")
    made.write(rows_of(60))
    return made


def ask(served, statement: str) -> list:
    with psycopg.connect(served.target.address, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_grants_of_the_view_stay_at_a_switch(served, table):
    pipelines.publish(config_of(served, table))
    role = "pipelines_reader"
    ask(served, f"DROP ROLE IF EXISTS {role}")
    ask(served, f"CREATE ROLE {role}")
    try:
        ask(served, f"GRANT SELECT ON documents TO {role}")
        ask(served, "GRANT SELECT ON documents TO PUBLIC")
        table.width = 12
        table.write(rows_of(60), model=OTHER_MODEL)
        pipelines.publish(config_of(served, table))
        same(served, table)
        rights = "SELECT has_table_privilege('{}', 'documents', '{}')"
        assert ask(served, rights.format(role, "SELECT")) == [(True,)]
        assert ask(served, rights.format(role, "DELETE")) == [(False,)]
    finally:
        ask(served, f"DROP OWNED BY {role}")
        ask(served, f"DROP ROLE {role}")


def test_a_query_of_the_view_uses_the_graph_of_the_metric(served, table):
    pipelines.publish(config_of(served, table))
    vector = str(table.expected()[3][0].tolist())
    with psycopg.connect(served.target.address) as connection:
        connection.execute("SET enable_seqscan = off")
        query = f"SELECT id FROM documents ORDER BY embedding <=> '{vector}' LIMIT 3"
        assert connection.execute(query).fetchall()[0] == (3,)
        told = connection.execute(f"EXPLAIN {query}").fetchall()
        assert any("_index_0" in line for (line,) in told)
        told = connection.execute("EXPLAIN SELECT id FROM documents WHERE topic = 'odd'")
        assert any("_index_1" in line for (line,) in told.fetchall())


def test_rows_that_came_twice_are_replaced(served):
    """A request whose answer was lost is sent again, though it has written its rows."""
    vectors = pa.list_(pa.float32(), 2)
    schema = pa.schema(
        [("id", pa.string()), ("embedding", vectors), ("tags", pa.list_(pa.int64()))]
    )
    layout = Layout(schema, "cosine")

    def rows(tag: int) -> pa.RecordBatch:
        flat = pa.FixedSizeListArray.from_arrays(pa.array([1, 0, 0, 1], pa.float32()), 2)
        return pa.record_batch([["a", "b"], flat, [[tag], []]], schema=schema)

    with opened(STORE, served.target) as store:
        store.create("documents_1", layout, "state")
        store.upsert("documents_1", layout, rows(1), may_exist=False)
        store.upsert("documents_1", layout, rows(2), may_exist=False)
        assert store.count("documents_1") == 2
    assert served.rows("documents_1")["a"]["tags"] == [2]


def test_vectors_too_wide_for_an_index_are_stored_all_the_same(served, tmp_path, caplog):
    table = VectorTables(tmp_path / "wide", width=2100)
    table.write(rows_of(3))
    caplog.set_level("WARNING", "pipelines")
    has_halves = ask(served, "SELECT to_regtype('halfvec')") != [(None,)]
    pipelines.publish(config_of(served, table))
    same(served, table)
    assert ("no index for vectors of 2100 numbers" in caplog.text) == (not has_halves)


def test_a_wrong_password_and_a_missing_right_are_told(served, table, monkeypatch):
    server = postgres_server()
    rules = Path(server.pgdata) / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all pipelines_ada scram-sha-256\n{before}")
    ask(served, "DROP ROLE IF EXISTS pipelines_ada")
    ask(served, "CREATE ROLE pipelines_ada LOGIN PASSWORD 'right horse'")
    ask(served, "CREATE EXTENSION IF NOT EXISTS vector")
    ask(served, "SELECT pg_reload_conf()")
    config = config_of(served, table, user="pipelines_ada")
    try:
        monkeypatch.setenv("PUBLISH_PASSWORD", "wrong horse")
        with pytest.raises(
            InputError, match=r"^publish\.password_variable: .*refuses user"
        ) as told:
            pipelines.publish(config)
        assert "horse" not in str(told.value)
        monkeypatch.setenv("PUBLISH_PASSWORD", "right horse")
        with pytest.raises(InputError, match=r"refuses the user \(permission denied for schema"):
            pipelines.publish(config)
        ask(served, "GRANT CREATE ON SCHEMA public TO pipelines_ada")
        assert pipelines.publish(config).rows == 60
    finally:
        rules.write_text(before)
        ask(served, "SELECT pg_reload_conf()")
        ask(served, "DROP OWNED BY pipelines_ada")
        ask(served, "DROP ROLE pipelines_ada")


def test_views_that_depend_on_other_columns_are_told(served, table):
    pipelines.publish(config_of(served, table))
    ask(served, "CREATE VIEW mine AS SELECT text FROM documents")
    table.width = 12
    table.write(rows_of(60), model=OTHER_MODEL)
    with pytest.raises(InputError, match=r"^publish\.collection: other views depend on documents"):
        pipelines.publish(config_of(served, table))
    ask(served, "DROP VIEW mine")
    made = pipelines.publish(config_of(served, table))
    assert (made.upserted, made.rows) == (0, 60)
    same(served, table)


def test_a_text_with_nul_is_refused(served, table):
    table.write([{"id": 1, "text": "a\0b", "topic": "x", "year": 1}])
    with pytest.raises(InputError, match=r"^publish\.columns: PostgreSQL takes no text with a NUL"):
        pipelines.publish(config_of(served, table))


def test_a_plan_leaves_the_database_alone(served, table):
    plan_publishing(config_of(served, table))
    assert ask(served, "SELECT to_regtype('vector'), to_regclass('documents')") == [(None, None)]


def test_a_state_is_a_comment(served, table):
    name = pipelines.publish(config_of(served, table)).collection
    ((comment,),) = ask(served, f"SELECT obj_description('{name}'::regclass)")
    assert json.loads(comment)["version"] == 0


@pytest.mark.parametrize(
    ("address", "told"),
    [
        (
            "host=localhost password=x",
            r"^publish\.address: it is no address of PostgreSQL\. Write postgresql://",
        ),
        (
            "postgresql://u:secret@127.0.0.1:{port}/d",
            r"pgvector does not answer at postgresql://127",
        ),
        (
            "postgresql://no.such.host.invalid/d",
            r"pgvector does not answer at postgresql://no\.such",
        ),
    ],
)
def test_addresses_without_a_server(address, told, served, table):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        given = address.format(port=free.getsockname()[1])
        target = replace(served.target, address=given, timeout=5)
        config = config_of(replace(served, target=target), table, timeout_seconds=5)
        with pytest.raises(InputError, match=told) as error:
            pipelines.publish(config)
    assert "secret" not in str(error.value)


def test_half_of_a_request_is_none(served):
    """A request that fails in the middle writes nothing."""
    schema = pa.schema(
        [("id", pa.int64()), ("embedding", pa.list_(pa.float32(), 1)), ("t", pa.string())]
    )
    layout = Layout(schema, "cosine")
    flat = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2, np.float32)), 1)
    with opened(STORE, served.target) as store:
        store.create("documents_1", layout, "state")
        with pytest.raises(psycopg.DataError):
            store.upsert(
                "documents_1", layout, pa.record_batch([[1, 2], flat, ["a", "\0"]], schema=schema)
            )
        assert store.count("documents_1") == 0


def layout_with(key: str, *columns: str) -> Layout:
    vectors = pa.list_(pa.float32(), 1)
    names = {key: pa.string(), "embedding": vectors, **dict.fromkeys(columns, pa.string())}
    return Layout(pa.schema(names), "cosine", columns)


def rows_with(layout: Layout, *rows: tuple[str, ...]) -> pa.RecordBatch:
    keys, *others = (pa.array(values) for values in zip(*rows, strict=True))
    vectors = pa.array([[1.0]] * len(rows), layout.vector.type)
    return pa.RecordBatch.from_arrays([keys, vectors, *others], schema=layout.schema)


def test_names_of_columns_are_kept_or_refused(served):
    layout = layout_with('100%s of "it"', "50% off", "%(a)s")
    with opened(STORE, served.target) as store:
        store.create("documents_1", layout, "state")
        for _ in range(2):
            store.upsert("documents_1", layout, rows_with(layout, ("a", "b", "c"), ("d", "e", "f")))
        store.delete("documents_1", layout, pa.array(["a"]))
        store.finish("documents_1", layout)
        assert store.count("documents_1") == 1
    for names in (["ctid"], ["n" * 63 + "a", "n" * 63 + "b"]):
        with (
            pytest.raises(InputError, match=r"^publish\.columns: .* has no column of the name"),
            opened(STORE, served.target) as store,
        ):
            store.create("documents_2", layout_with("id", *names), "state")


def test_a_value_too_long_for_an_index_is_told_at_once(served):
    layout = layout_with("id", "topic")
    long = "".join(random.Random(1).choices("abcdefghij", k=20_000))
    for key, value in ((long, "a"), ("a", long)):
        with (
            pytest.raises(InputError, match=r"^publish\.filters: a key or a filter is too long"),
            connected(STORE, served.target) as connection,
        ):
            connection.do(lambda store: store.drop("documents_1"))
            connection.do(lambda store: store.create("documents_1", layout, "state"))
            rows = rows_with(layout, (key, value))
            connection.do(lambda store, rows=rows: store.upsert("documents_1", layout, rows))
            connection.do(lambda store: store.finish("documents_1", layout))


@pytest.mark.parametrize(
    ("error", "key", "passes"),
    [
        (psycopg.OperationalError("FATAL: sorry, too many clients"), "publish.connections", True),
        (errors.TooManyConnections("too many connections for role"), "publish.connections", True),
        (errors.DiskFull("could not extend file"), "publish.address", False),
        (errors.UndefinedFile('could not open "vector.control"'), "publish.address", False),
    ],
)
def test_a_server_out_of_means_is_not_one_without_an_answer(error, key, passes):
    refusal = STORE.refusal(error, Target("pgvector", "postgresql://host/d", "documents"))
    assert refusal is not None
    assert refusal.key == key
    assert "does not answer" not in str(refusal)
    assert STORE.is_temporary(error) is passes


@contextmanager
def proxy(path: str) -> Iterator[tuple[int, threading.Event]]:
    """A port in front of the server's socket, which forwards nothing once the event is set."""
    is_frozen, ends = threading.Event(), []

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not is_frozen.is_set():
                    sink.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    inner, outer = socket.socket(socket.AF_UNIX), listening.accept()[0]
                    inner.connect(path)
                    ends.extend((inner, outer))
                    for pair in ((inner, outer), (outer, inner)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], is_frozen
    for end in ends:
        end.close()


def test_a_server_that_falls_silent_is_left(served, monkeypatch):
    monkeypatch.setattr(pgvector, "GRACE_SECONDS", 1)
    given = conninfo_to_dict(served.target.address)
    with proxy(f"{given['host']}/.s.PGSQL.5432") as (port, is_frozen):
        address = f"postgresql://{given['user']}@127.0.0.1:{port}/{given['dbname']}?sslmode=disable"
        target = replace(served.target, address=address, timeout=2, secret=given.get("password"))
        with opened(STORE, target) as store:
            assert store.collections() == {}
            is_frozen.set()
            with pytest.raises(psycopg.OperationalError) as raised:
                store.collections()
            assert STORE.is_temporary(raised.value)
