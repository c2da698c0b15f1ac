"""Iceberg tables by `pyiceberg`: which rows of which files, held against the library's own scan."""

import datetime
import threading
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile as ManifestFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, StringType

from pipelines.corpus.readers.iceberg import (
    UnknownCatalogError,
    iceberg_version,
    in_time,
    open_iceberg,
    store_properties,
)
from pipelines.corpus.readers.table_files import _parts_of, _read_parts
from pipelines.corpus.readers.tables import ICEBERG
from pipelines.errors import InputError
from pipelines.settings.spark import DEFAULT_STORES, StorageSettings

DAY = datetime.date(2020, 1, 2)
MOMENT = datetime.datetime(1850, 1, 1, 1, 2, 3, 4)
TABLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "text": ["a", None, "Grüße", ""],
        "lang": ["a b/ü%=:", "de", None, "de"],
        "day": pa.array([DAY, DAY, DAY, None]),
        "when": pa.array([MOMENT] * 4, pa.timestamp("us", "UTC")),
        "local": pa.array([MOMENT, None] * 2, pa.timestamp("us")),
        "numbers": [[1.5, 2.5], [3.0], None, []],
        "price": pa.array([Decimal("1.25"), None] * 2, pa.decimal128(21, 2)),
        "raw": [b"\xff", b"", None, b"x"],
        "score": pa.array([0.5, None, 1.0, 2.0], pa.float32()),
        "a.b `c`": [1.0, 2.0, 3.0, None],
    }
)
NAME = "lake.db.texts"


def version_of(name=NAME, snapshot=None):
    table = open_iceberg(name, DEFAULT_STORES)
    return iceberg_version("corpus.inputs", name, table, snapshot, DEFAULT_STORES)


def rows_of(version) -> list:
    """The rows as executors yield them."""
    batches = _read_parts(
        iter(_parts_of(version.files)),
        schema=version.schema,
        stored=version.stored,
        by_library=version.by_library,
    )
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)


def scanned(name=NAME, snapshot=None) -> list:
    """The rows as the library itself reads them."""
    table = open_iceberg(name, DEFAULT_STORES)
    return sorted(table.scan(snapshot_id=snapshot).to_arrow().to_pylist(), key=str)


def by_library(version) -> int:
    return sum(file.task is not None for file in version.files)


def test_a_catalog_that_is_silent_ends_the_wait() -> None:
    asked, ended = threading.Event(), threading.Event()

    def silent() -> None:
        asked.set()
        ended.wait(60)

    impatient = DEFAULT_STORES.model_copy(update={"timeout_seconds": 0.1, "retry_seconds": 0.0})
    with pytest.raises(OSError, match="the catalog has not answered for 0 s"):
        in_time(silent, impatient)
    assert asked.is_set()
    ended.set()
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, DEFAULT_STORES)
    assert in_time(lambda: 5, DEFAULT_STORES) == 5


@pytest.mark.parametrize("by", [[], ["lang"], ["day", "lang"]])
def test_partitions_types_and_nulls(lake, by):
    table = lake.create_table("db.texts", schema=TABLE.schema)
    with table.update_spec() as spec:
        for column in by:
            spec.add_identity(column)
    table.append(TABLE)
    version = version_of()
    assert by_library(version) == 0
    assert rows_of(version) == scanned() == sorted(TABLE.to_pylist(), key=str)
    at_once = version_of(table.metadata_location)
    assert rows_of(at_once) == scanned()


def test_each_snapshot_of_a_table_that_changes(lake):
    nested = pa.array([{"x": 1}, {"x": 2}, None, {"x": None}])
    table = lake.create_table("db.texts", schema=TABLE.append_column("in", nested).schema)
    table.append(TABLE.append_column("in", nested))
    with table.update_schema() as schema:
        schema.rename_column("text", "body")
        schema.update_column("id", LongType())
        schema.update_column("score", DoubleType())
        schema.add_column("new", StringType())
        schema.add_column(("in", "y"), LongType())
        schema.delete_column("raw")
    with table.update_spec() as spec:
        spec.add_identity("lang")
    more = {"id": [2**40], "body": ["b"], "lang": ["fr"], "in": [{"x": 3, "y": 4}], "new": ["n"]}
    schema = table.schema().as_arrow()
    columns = {field.name: pa.array(more.get(field.name, [None]), field.type) for field in schema}
    table.append(pa.table(columns))
    with table.update_schema() as schema:
        schema.delete_column("score")
    with table.update_schema() as schema:
        # Of the same name, and without the values of the column that went.
        schema.add_column("score", DoubleType())
    table.delete("id = 3")
    counts = []
    # Struct columns are the library's.
    for entry in open_iceberg(NAME, DEFAULT_STORES).history():
        version = version_of(snapshot=entry.snapshot_id)
        rows = rows_of(version)
        newest = entry.snapshot_id == table.current_snapshot().snapshot_id
        assert rows == scanned(snapshot=None if newest else entry.snapshot_id)
        counts.append((len(rows), by_library(version) > 0))
    assert counts == [(4, True), (5, True), (4, True)]
    now = rows_of(version_of())
    assert {row["score"] for row in now} == {None}
    assert {row["body"] for row in now} == {"a", None, "", "b"}


def test_renamed_and_widened_columns_are_read_as_they_are(lake):
    table = lake.create_table("db.texts", schema=TABLE.schema)
    table.append(TABLE)
    with table.update_schema() as schema:
        schema.rename_column("text", "body")
        schema.rename_column("lang", "text")
        schema.update_column("id", LongType())
        schema.update_column("score", DoubleType())
        schema.delete_column("raw")
    version = version_of()
    assert by_library(version) == 0
    assert rows_of(version) == scanned()
    assert [row["text"] for row in rows_of(version)] == TABLE["lang"].to_pylist()
    assert version.schema.field("id").type == pa.int64()


def add_delete_file(table, path, content, rows):
    """Adds a file of deletes to a table, as engines do that do not write data files again."""
    deleted = pa.table(
        {
            "file_path": [file for file, _ in rows],
            "pos": pa.array([place for _, place in rows], pa.int64()),
        },
        schema=pa.schema(
            [
                pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
                pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
            ]
        ),
    )
    pq.write_table(deleted, path)
    entry = ManifestFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )
    with table.transaction() as step, step.update_snapshot().fast_append() as files:
        files.append_data_file(entry)


def test_rows_deleted_by_position_are_left_out(lake, tmp_path):
    table = lake.create_table("db.texts", schema=TABLE.schema)
    table.append(TABLE)
    table.append(TABLE)
    files = sorted(task.file.file_path for task in table.scan().plan_files())
    add_delete_file(
        table,
        tmp_path / "d.parquet",
        DataFileContent.POSITION_DELETES,
        [(files[0], 1), (files[0], 3)],
    )
    version = version_of()
    assert rows_of(version) == scanned()
    assert sorted(row["id"] for row in rows_of(version)) == [1, 1, 2, 3, 3, 4]
    assert by_library(version) == 2


def test_deletes_by_equality_are_refused(lake, tmp_path):
    table = lake.create_table("db.texts", schema=TABLE.schema)
    table.append(TABLE)
    add_delete_file(table, tmp_path / "d.parquet", DataFileContent.EQUALITY_DELETES, [("x", 1)])
    with pytest.raises(InputError, match=r"not yet support equality deletes.* compact"):
        version_of()


def test_a_changed_table_is_noticed(lake):
    assert ICEBERG.fingerprint([NAME], DEFAULT_STORES) is None
    table = lake.create_table("db.texts", schema=TABLE.schema)
    assert ICEBERG.fingerprint([NAME], DEFAULT_STORES) is None
    assert rows_of(version_of()) == []
    table.append(TABLE)
    first = ICEBERG.fingerprint([NAME], DEFAULT_STORES)
    newest = table.current_snapshot().snapshot_id
    assert first == {"tables": [[NAME, newest, 0]]}
    assert ICEBERG.pin(None, NAME, DEFAULT_STORES) == f"{NAME}@{newest}"
    with table.update_schema() as schema:
        schema.rename_column("text", "body")
    renamed = ICEBERG.fingerprint([NAME], DEFAULT_STORES)
    assert renamed == {"tables": [[NAME, newest, 1]]}
    table.append(TABLE.rename_columns(["body" if n == "text" else n for n in TABLE.column_names]))
    assert ICEBERG.fingerprint([NAME], DEFAULT_STORES) not in (first, renamed)
    assert ICEBERG.fingerprint([f"{NAME}@7"], DEFAULT_STORES) == {"tables": [[NAME, "7"]]}
    assert ICEBERG.folder(table.metadata_location).name == "texts"
    assert ICEBERG.folder(NAME) is None


def test_a_catalog_that_nobody_has_described(lake):
    with pytest.raises(UnknownCatalogError, match="pyiceberg knows no catalog `sea`"):
        open_iceberg("sea.db.texts", DEFAULT_STORES)
    with pytest.raises(UnknownCatalogError):
        open_iceberg("lake", DEFAULT_STORES)


def test_files_with_the_access_of_their_catalog_are_read_through_it(lake, monkeypatch):
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ACCESS_KEY_ID", "known to the catalog")
    lake.create_table("db.texts", schema=TABLE.schema).append(TABLE)
    version = version_of()
    assert by_library(version) == 1
    assert rows_of(version) == scanned()


def test_settings_of_stores_are_properties_of_the_library():
    assert store_properties(DEFAULT_STORES) == {}
    stores = StorageSettings(s3_endpoint="http://minio:9000", s3_region="eu-1", anonymous=True)
    assert store_properties(stores) == {
        "s3.endpoint": "http://minio:9000",
        "s3.region": "eu-1",
        "s3.anonymous": "true",
    }
