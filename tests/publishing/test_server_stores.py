"""Stores behind servers: rows, states, aliases and errors, on what each really speaks.

Milvus is Milvus Lite. Qdrant is the client's local mode, in a folder and behind a stand-in for its
REST interface. OpenSearch and Elasticsearch are a stand-in, not the real servers.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from certificates import self_signed
from free_addresses import free_addresses
from publish_stores import STORES as STORES_WITH_READERS
from qdrant_server import qdrant_server
from search_engine_server import search_engine_server
from server_stores import KEY, SERVED, VECTOR, ServedStore, unit

from pipelines.catalog import STORES
from pipelines.errors import InputError, PipelineError
from pipelines.publishing.milvus import LONGEST_TEXT
from pipelines.publishing.qdrant import point_id
from pipelines.publishing.search_engines import LONGEST_ID, RowsRefusedError, document_id
from pipelines.publishing.store import (
    Layout,
    Store,
    StoreKind,
    Target,
    opened,
    payload_of,
    refusals,
)

pytestmark = pytest.mark.slow

WIDTH = 4
COLUMNS: dict[str, pa.DataType] = {
    "title": pa.string(),
    "year": pa.int64(),
    "price": pa.float64(),
    "is_new": pa.bool_(),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "tags": pa.list_(pa.string()),
    "language": pa.string(),
}
FILTERS = ("language", "year", "day")
AT_NOON = dt.datetime(2026, 1, 31, 12, 0, 0, 5, dt.UTC)


def layout_of(key: pa.DataType, metric: Any = "cosine", width: int = WIDTH) -> Layout:
    vector = pa.list_(pa.float32(), width)
    schema = pa.schema({KEY: key, VECTOR: vector, **COLUMNS})
    return Layout(schema, metric, FILTERS)


def rows_of(layout: Layout, keys: list[Any], seed: int = 1) -> pa.RecordBatch:
    """Rows of keys; each third one has no payload at all."""
    vectors = np.random.default_rng(seed).normal(size=(len(keys), layout.width))
    full = {
        "title": "Tïtle of " + "words " * seed,
        "year": -(2**40) + seed,
        "price": 0.1 * seed,
        "is_new": seed % 2 == 0,
        "day": dt.date(2026, 1, 31),
        "moment": AT_NOON,
        "tags": ["a", "b c"],
        "language": "de",
    }
    payload = [{} if place % 3 == 2 else full for place in range(len(keys))]
    columns = [pa.array(keys, layout.key.type)]
    columns.append(pa.array(vectors.astype(np.float32).tolist(), layout.vector.type))
    columns += [
        pa.array([row.get(name) for row in payload], kind) for name, kind in COLUMNS.items()
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def expected(rows: pa.RecordBatch) -> dict[Any, dict[str, Any]]:
    """The rows as stores have them: times as text, and nulls left out."""
    found = {}
    for row in rows.to_pylist():
        plain = {
            name: value.isoformat() if hasattr(value, "isoformat") else value
            for name, value in row.items()
            if value is not None
        }
        found[row[KEY]] = plain
    return found


def assert_same(found: dict[Any, dict[str, Any]], wanted: dict[Any, dict[str, Any]]) -> None:
    assert {*found} == {*wanted}
    for key, row in wanted.items():
        ours = dict(found[key])
        # Qdrant keeps unit vectors under cosine.
        np.testing.assert_allclose(unit(ours.pop(VECTOR)), unit(row.pop(VECTOR)), atol=1e-6)
        assert ours == row


# The engine behind the server; what the file adds is told below and in test_publish.py.
IN_MATRIX = ("milvus_file",)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.matrix] if name in IN_MATRIX else []


@pytest.fixture(scope="module", params=[pytest.param(one, marks=marks_of(one)) for one in SERVED])
def served(request, tmp_path_factory) -> Iterator[ServedStore]:
    with SERVED[request.param](tmp_path_factory.mktemp(request.param)) as store:
        yield store


@pytest.fixture
def kind(served) -> StoreKind:
    found: StoreKind = STORES.load(served.target.store)
    return found


@pytest.fixture
def target(served, request) -> Target:
    """A target with a collection of its own for each test."""
    name = request.node.originalname.removeprefix("test_")[:30]
    return replace(served.target, collection=name)


@pytest.fixture
def store(kind, target) -> Iterator[Store]:
    with opened(kind, target) as store:
        yield store


@pytest.mark.parametrize("keys", [["a", "ü/1", " b "], [0, 7, -3, 2**62]], ids=["texts", "numbers"])
def test_rows_are_inserted_replaced_and_deleted_by_key(keys, served, kind, target):
    is_text = isinstance(keys[0], str)
    layout = layout_of(pa.string() if is_text else pa.int64())
    name = f"{target.collection}_{'texts' if is_text else 'numbers'}"
    first, second = rows_of(layout, keys), rows_of(layout, keys[:2], seed=2)
    with opened(kind, target) as store:
        store.create(name, layout, "state")
        store.upsert(name, layout, first)
        store.upsert(name, layout, first)
        store.finish(name, layout)
        assert store.count(name) == len(keys)
    assert_same(served.rows(name), expected(first))
    with opened(kind, target) as store:
        store.upsert(name, layout, second)
        gone = pa.array([keys[2], keys[2]], layout.key.type)
        store.delete(name, layout, gone)
        store.delete(name, layout, gone)
        store.finish(name, layout)
        assert store.count(name) == len(keys) - 1
    rest = expected(first.slice(3)) | expected(second)
    assert_same(served.rows(name), rest)


def test_states_are_kept_with_collections_and_replaced(store, target):
    layout, ours = layout_of(pa.string()), f"{target.collection}_1"
    assert store.collections() == {}
    store.create(ours, layout, '{"version": 1}')
    store.create("of_another_alias", layout, "other")
    assert store.collections() == {ours: '{"version": 1}'}
    store.write_state(ours, '{"version": 2, "name": "é"}' + "x" * 3000)
    store.upsert(ours, layout, rows_of(layout, ["a"]))
    store.finish(ours, layout)
    assert store.collections() == {ours: '{"version": 2, "name": "é"}' + "x" * 3000}
    for name in (ours, "of_another_alias", "absent"):
        store.drop(name)
    assert store.collections() == {}


def test_the_alias_moves_to_another_collection(served, kind, target):
    layout, alias = layout_of(pa.string()), target.collection
    old, new = f"{alias}_1", f"{alias}_2"
    with opened(kind, target) as store:
        assert store.current() is None
        for name, key in ((old, "a"), (new, "b")):
            store.create(name, layout, name)
            store.upsert(name, layout, rows_of(layout, [key]))
            store.finish(name, layout)
        store.switch(old)
        assert store.current() == old
        store.switch(new)
        store.switch(new)
        assert store.current() == new
        assert {*store.collections()} == {old, new}
        store.drop(old)
        assert {*store.collections()} == {new}
    assert {*served.rows(alias)} == {"b"}


def test_a_collection_with_the_name_of_the_alias_is_found(store, target):
    store.create(target.collection, layout_of(pa.string()), "theirs")
    assert store.current() == target.collection
    assert store.collections() == {target.collection: "theirs"}


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_every_metric_makes_a_collection(metric, store, target):
    layout, name = layout_of(pa.int64(), metric), f"{target.collection}_{metric}"
    store.create(name, layout, "state")
    store.upsert(name, layout, rows_of(layout, [1, 2]))
    store.finish(name, layout)
    assert store.count(name) == 2


def test_wide_rows_are_sent_in_several_requests(served, kind, target):
    layout, name = layout_of(pa.int64(), width=2000), f"{target.collection}_1"
    rows = rows_of(layout, list(range(300)))
    with opened(kind, target) as store:
        store.create(name, layout, "state")
        store.upsert(name, layout, rows)
        store.finish(name, layout)
        assert store.count(name) == 300
    assert {*served.rows(name)} == set(range(300))


def test_a_row_of_another_width_is_refused(store, kind, target):
    layout, name = layout_of(pa.int64()), f"{target.collection}_1"
    store.create(name, layout, "state")
    other = layout_of(pa.int64(), width=3)
    with pytest.raises(Exception) as raised:
        store.upsert(name, other, rows_of(other, [1]))
    assert not kind.is_temporary(raised.value)
    store.finish(name, layout)
    assert store.count(name) == 0


SERVERS = ("qdrant", "milvus", "opensearch", "elasticsearch")
STAND_INS = ("qdrant", "opensearch", "elasticsearch")


def refusal_of(target: Target) -> InputError:
    with pytest.raises(InputError) as raised, opened(STORES.load(target.store), target) as store:
        store.collections()
    assert "let me in" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_does_not_answer_is_refused_in_one_line(name):
    with free_addresses(1) as ((_, port),):
        pass
    address = f"http://ada:secret@127.0.0.1:{port}"
    error = refusal_of(Target(name, address, "documents", timeout=5))
    assert error.key == "publish.address"
    assert f"{name} does not answer at http://127.0.0.1:{port} (" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_may_leave_the_port_out(name, scheme):
    # Nothing answers at this address of the loopback network.
    error = refusal_of(Target(name, f"{scheme}://127.9.9.9", "documents", timeout=5))
    assert f"{name} does not answer at {scheme}://127.9.9.9 (" in str(error)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ftp://host", "ftp://host is no address of"),
        ("http://host:1?ssl=on", "http://host:1 has the parameter `ssl`, which"),
    ],
)
def test_other_addresses_are_refused(name, address, told):
    assert told in str(refusal_of(Target(name, address, "documents")))


@pytest.mark.parametrize("name", [*SERVERS, "pgvector"])
@pytest.mark.parametrize(
    "password", ["Tops3cret/1", "Tops3cret%zz/1", "1@Tops3cret", "1/Tops3cret"]
)
def test_a_password_with_unescaped_signs_is_not_told(name, password):
    scheme = "postgresql" if name == "pgvector" else "http"
    target = Target(name, f"{scheme}://ada:{password}@host.invalid:9200/db", "documents", timeout=2)
    error = refusal_of(target)
    assert error.key == "publish.address"
    assert "s3cret" not in f"{error} {target}"


@pytest.mark.parametrize("secret", ["let me in", "p%40ss word", "p@ss word"])
def test_errors_of_clients_lose_the_password(secret):
    target = Target("qdrant", "http://ada:p%40ss word@host", "documents", secret="let me in")
    kind: StoreKind = STORES.load("qdrant")
    with pytest.raises(PipelineError) as raised, refusals(kind, target):
        raise ValueError(f"no {secret} here")
    assert str(raised.value) == "qdrant failed: no (hidden) here"


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("lancedb", "a.b"),
        ("lancedb", "a`b"),
        ("lancedb", "_rowid"),
        ("opensearch", "_id"),
        ("elasticsearch", "_source"),
        ("elasticsearch", "a..b"),
    ],
)
def test_columns_without_a_name_in_a_store_are_refused(name, column, tmp_path):
    layout = layout_of(pa.string())
    named = replace(layout, schema=layout.schema.set(2, pa.field(column, pa.string())))
    with STORES_WITH_READERS[name](tmp_path) as served:
        with (
            pytest.raises(InputError, match=r"^publish\.columns: .* has no column of the name"),
            opened(STORES.load(name), served.target) as store,
        ):
            store.create("documents_1", named, "state")
        with opened(STORES.load(name), served.target) as store:
            assert store.collections() == {}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([10**7], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.timestamp("us", "UTC")),
        pa.array([[-(2**62)]], pa.list_(pa.timestamp("us"))),
    ],
    ids=["date", "moment", "list"],
)
def test_dates_beyond_the_calendar_are_refused(column):
    vectors = pa.array([[1.0]], pa.list_(pa.float32(), 1))
    rows = pa.RecordBatch.from_arrays([pa.array([1]), vectors, column], [KEY, VECTOR, "day"])
    with pytest.raises(InputError, match="`day` has a date outside of the years 1 to 9999"):
        payload_of(rows)


@pytest.mark.parametrize("name", STAND_INS)
def test_a_wrong_password_is_refused_and_a_busy_server_is_temporary(name, tmp_path):
    with SERVED[name](tmp_path) as served:
        wrong = replace(served.target, secret="wrong")
        error = refusal_of(wrong)
        assert error.key == "publish.password_variable"
        assert "refuses the user, password or key" in error.problem
        served.state.failures.append(403)
        assert "refuses this user the request" in refusal_of(served.target).problem
        kind: StoreKind = STORES.load(name)
        for status, passes in ((429, True), (503, True), (500, False)):
            served.state.failures.append(status)
            with pytest.raises(Exception) as raised, opened(kind, served.target) as store:
                store.collections()
            assert kind.is_temporary(raised.value) is passes


@pytest.mark.parametrize("name", STAND_INS)
def test_a_certificate_needs_a_known_authority(name, tmp_path):
    certificate, tls = self_signed(tmp_path)
    server = qdrant_server(tls=tls) if name == "qdrant" else search_engine_server(name, tls=tls)
    with server as (address, _):
        target = Target(name, address, "documents", timeout=30)
        assert "a certificate of an unknown authority" in refusal_of(target).problem
        trusting = replace(target, address=f"{address}?sslrootcert={certificate}")
        with opened(STORES.load(name), trusting) as store:
            assert store.collections() == {}
        absent = replace(target, address=f"{address}?sslrootcert=/absent.pem")
        assert "sslrootcert names /absent.pem, which is no file" in str(refusal_of(absent))


@pytest.mark.parametrize("name", ["opensearch", "elasticsearch"])
def test_items_that_fail_in_a_request_that_does_not_are_seen(name, tmp_path):
    kind: StoreKind = STORES.load(name)
    layout = layout_of(pa.string())
    rows = rows_of(layout, ["a", "b", "c"])
    with SERVED[name](tmp_path) as served, opened(kind, served.target) as store:
        store.create("documents_1", layout, "state")
        for statuses, passes in (([429, 429], True), ([429, 400], False)):
            served.state.item_failures += statuses
            with pytest.raises(RowsRefusedError, match="2 rows, the first `a`: 429") as raised:
                store.upsert("documents_1", layout, rows)
            assert kind.is_temporary(raised.value) is passes
            error = kind.refusal(raised.value, served.target)
            assert error.key == ("publish.connections" if passes else "publish.columns")
        store.upsert("documents_1", layout, rows)
        store.finish("documents_1", layout)
        assert store.count("documents_1") == 3


@pytest.mark.parametrize("name", ["opensearch", "elasticsearch"])
def test_int8_vectors_are_stored_as_bytes(name, tmp_path):
    vector = pa.list_(pa.int8(), 2)
    layout = Layout(pa.schema({KEY: pa.string(), VECTOR: vector}), "cosine")
    columns = [pa.array(["a"]), pa.array([[-128, 127]], vector)]
    rows = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    with SERVED[name](tmp_path) as served, opened(STORES.load(name), served.target) as store:
        store.create("documents_1", layout, "state")
        store.upsert("documents_1", layout, rows)
        store.finish("documents_1", layout)
        assert served.rows("documents_1") == {"a": {KEY: "a", VECTOR: [-128, 127]}}
        mapping = served.state.index("documents_1").mappings["properties"][VECTOR]
        assert "byte" in (mapping.get("data_type"), mapping.get("element_type"))


def test_keys_too_long_for_an_id_are_hashed():
    assert document_id("é" * (LONGEST_ID // 2)) == "é" * (LONGEST_ID // 2)
    assert len(document_id("é" * (LONGEST_ID // 2) + "a")) == 64
    assert document_id(-5) == "-5"


def test_points_have_ids_that_others_can_compute():
    assert point_id(5) == 5
    assert point_id("5") == str(uuid.uuid5(uuid.NAMESPACE_OID, "5"))
    assert point_id(-5) == str(uuid.uuid5(uuid.NAMESPACE_OID, "-5"))


def test_filters_are_indexed_by_their_types(tmp_path):
    layout = layout_of(pa.string())
    with (
        SERVED["qdrant"](tmp_path) as served,
        opened(STORES.load("qdrant"), served.target) as store,
    ):
        store.create("documents_1", layout, "state")
        assert {(column, kind) for _, column, kind in served.state.indexed} == {
            ("language", "keyword"),
            ("year", "integer"),
            ("day", "datetime"),
        }


def milvus_in(folder: Path) -> Target:
    return Target("milvus", str(folder / "vectors.db"), "documents")


def test_milvus_refuses_texts_and_names_that_no_field_takes(tmp_path):
    layout = Layout(
        pa.schema({KEY: pa.string(), VECTOR: pa.list_(pa.float32(), 1), "text": pa.string()}),
        "cosine",
    )
    columns = [["a"], [[1.0]], ["é" * LONGEST_TEXT]]
    arrays = [
        pa.array(one, column.type) for one, column in zip(columns, layout.schema, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=layout.schema)
    kind: StoreKind = STORES.load("milvus")
    with opened(kind, milvus_in(tmp_path)) as store:
        store.create("documents_1", layout, "state")
        with pytest.raises(InputError, match="`text` has a text of 131,070 bytes"):
            store.upsert("documents_1", layout, rows)
        renamed = replace(layout, schema=layout.schema.set(2, pa.field("a text", pa.string())))
        with pytest.raises(InputError, match="Milvus has no field `a text`"):
            store.create("documents_2", renamed, "state")
    with (
        pytest.raises(InputError, match="is no file of Milvus Lite"),
        opened(kind, replace(milvus_in(tmp_path), address=str(tmp_path))),
    ):
        pass


def test_milvus_deletes_keys_with_any_character(tmp_path):
    layout = Layout(pa.schema({KEY: pa.string(), VECTOR: pa.list_(pa.float32(), 1)}), "cosine")
    keys = pa.array([*map(chr, range(128)), "\\u0001", "\"'\\", "\\n", "\u2028"])
    vectors = pa.array([[1.0]] * len(keys), layout.vector.type)
    with opened(STORES.load("milvus"), milvus_in(tmp_path)) as store:
        store.create("documents_1", layout, "state")
        rows = pa.RecordBatch.from_arrays([keys, vectors], schema=layout.schema)
        store.upsert("documents_1", layout, rows)
        assert store.count("documents_1") == len(keys)
        store.delete("documents_1", layout, keys)
        assert store.count("documents_1") == 0


@pytest.mark.parametrize("name", ["qdrant_folder", "milvus_file"])
def test_a_store_of_one_process_is_left_to_others_when_closed(name, tmp_path):
    with SERVED[name](tmp_path) as served:
        kind: StoreKind = STORES.load(served.target.store)
        assert kind.is_of_one_process(served.target)
        for _ in range(2):
            with opened(kind, served.target) as store:
                assert store.collections() == {}
        if name == "qdrant_folder":
            with opened(kind, served.target):
                assert "has the folder" in refusal_of(served.target).problem


HOLDING = """
import sys
from milvus_lite import MilvusLite
with MilvusLite(sys.argv[1]):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_file_of_another_process_is_refused(tmp_path):
    target = milvus_in(tmp_path)
    command = [sys.executable, "-c", HOLDING, target.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        error = refusal_of(target)
        process.communicate(timeout=120)
    assert error.key == "publish.address"
    assert "vectors.db cannot be opened" in error.problem
