"""Delta tables by `deltalake`: which rows of which files, held against the library's own scan."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from lake_tables import commit, delete_by_vector, protocol, write_delta

from pipelines.corpus.readers.delta import delta_version, open_delta, storage_options
from pipelines.corpus.readers.table_files import _parts_of, _read_parts
from pipelines.corpus.readers.tables import DELTA
from pipelines.errors import InputError, PipelineError
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
        "within": [{"x": 1, "y": "q"}] * 3 + [None],
        "price": pa.array([Decimal("1.25"), None] * 2, pa.decimal128(21, 2)),
        "raw": [b"\xff", b"", None, b"x"],
        "is": [True, False, None, True],
        "a.b `c`": [1.0, 2.0, 3.0, None],
    }
)


def version_of(folder, version=None, stores=DEFAULT_STORES):
    table = open_delta(str(folder), stores, version)
    return delta_version("corpus.inputs", str(folder), table, stores)


def rows_of(version) -> list:
    """The rows as executors yield them."""
    batches = _read_parts(
        iter(_parts_of(version.files)),
        schema=version.schema,
        stored=version.stored,
        by_library=version.by_library,
    )
    return sorted((row for batch in batches for row in batch.to_pylist()), key=str)


def scanned(folder, version=None) -> list:
    """The rows as the library itself reads them."""
    return sorted(pa.table(DeltaTable(str(folder), version).scan()).to_pylist(), key=str)


@pytest.mark.parametrize("by", [[], ["lang"], ["day", "lang"], ["when"], ["local", "price", "is"]])
def test_partitions_types_and_nulls(tmp_path, by):
    folder = tmp_path / "a table"
    write_delta(folder, TABLE, partition_by=by)
    assert rows_of(version_of(folder)) == scanned(folder) == sorted(TABLE.to_pylist(), key=str)


def test_each_version_of_a_table_that_changes(tmp_path):
    write_delta(tmp_path, TABLE, partition_by=["day"])
    more = TABLE.drop(["is"]).append_column("new", pa.array([[1], None, [], [2]]))
    write_delta(tmp_path, more, mode="append", schema_mode="merge")
    wider = pa.table({"id": [9], "within": [{"x": 2, "y": "r", "z": 0.5}]})
    write_delta(tmp_path, wider, mode="append", schema_mode="merge")
    table = DeltaTable(str(tmp_path))
    table.delete("id = 2")
    table.update(updates={"text": "'new'"}, predicate="id = 1")
    table.optimize.compact()
    counts = []
    for version in range(DeltaTable(str(tmp_path)).version() + 1):
        rows = rows_of(version_of(tmp_path, version))
        assert rows == scanned(tmp_path, version)
        counts.append(len(rows))
    assert counts == [4, 8, 9, 7, 7, 7]
    assert DELTA.fingerprint([str(tmp_path)], DEFAULT_STORES) == {"tables": [[str(tmp_path), 5]]}


def test_rows_deleted_by_vectors_are_left_out(tmp_path):
    folder = tmp_path / "a table"
    rows = pa.table({"id": list(range(100)), "part": ["x y"] * 60 + ["z"] * 40})
    write_deltalake(str(folder), rows, partition_by=["part"])
    delete_by_vector(folder, 0, [0, 7, 59])
    found = rows_of(version_of(folder))
    assert found == scanned(folder)
    assert {row["id"] for row in found} == {*range(100)} - {0, 7, 59}


def test_deleted_rows_are_counted_across_row_groups(tmp_path):
    """The vector counts rows of the file, and a task may begin in its middle."""
    write_delta(tmp_path, pa.table({"id": list(range(1000))}))
    (file,) = tmp_path.glob("*.parquet")
    pq.write_table(pa.table({"id": list(range(1000))}), file, row_group_size=100)
    delete_by_vector(tmp_path, 0, [99, 100, 550, 999])
    version = version_of(tmp_path)
    (part,) = _parts_of(version.files)
    halves = [
        part.__class__(**{**vars(part), "row_groups": groups})
        for groups in ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
    ]
    read = [
        [
            row
            for batch in _read_parts(
                iter([half]), schema=version.schema, stored=version.stored, by_library=None
            )
            for row in batch["id"].to_pylist()
        ]
        for half in halves
    ]
    assert [len(ids) for ids in read] == [498, 498]
    assert {*read[0], *read[1]} == {*range(1000)} - {99, 100, 550, 999}


def test_mapped_columns_are_found_by_their_names_in_the_files(tmp_path):
    mapped = {"delta.columnMapping.mode": "name"}
    table = TABLE.select(["id", "text", "lang", "numbers"])
    write_delta(tmp_path, table, configuration=mapped, partition_by=["lang"])
    version = version_of(tmp_path)
    assert all(name.startswith("col-") for name in version.stored.values())
    assert rows_of(version) == scanned(tmp_path) == sorted(table.to_pylist(), key=str)


@pytest.mark.parametrize(
    ("feature", "problem"),
    [("variantType-preview", "uses variantType-preview"), ("typeWidening", "uses typeWidening")],
)
def test_features_that_may_change_rows_are_refused(tmp_path, feature, problem):
    write_delta(tmp_path, TABLE.select(["id"]))
    commit(tmp_path, protocol(feature))
    try:
        opened = open_delta(str(tmp_path), DEFAULT_STORES)
    except DeltaError as error:
        assert feature in str(error)
        return
    with pytest.raises(InputError, match=problem):
        delta_version("corpus.inputs", "t", opened, DEFAULT_STORES)


def test_mapped_names_within_a_column_are_refused(tmp_path):
    mapped = {"delta.columnMapping.mode": "name"}
    write_delta(tmp_path, TABLE.select(["id", "within"]), configuration=mapped)
    with pytest.raises(InputError, match="also within `within`"):
        version_of(tmp_path)


def test_a_file_of_another_type_is_no_wrong_row(tmp_path):
    write_delta(tmp_path, pa.table({"id": ["1", "2"]}))
    (file,) = tmp_path.glob("*.parquet")
    pq.write_table(pa.table({"id": [b"1", b"\xff"]}), file)
    with pytest.raises(PipelineError, match=r"column `id` of .* does not fit the table's string"):
        rows_of(version_of(tmp_path))


def test_settings_of_stores_are_options_of_the_library():
    assert storage_options(DEFAULT_STORES) == {"timeout": "60s"}
    options = storage_options(
        StorageSettings(s3_endpoint="http://minio:9000", s3_region="eu-1", anonymous=True)
    )
    assert options == {
        "timeout": "60s",
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_REGION": "eu-1",
        "AWS_SKIP_SIGNATURE": "true",
        "ALLOW_HTTP": "true",
    }


def test_a_table_in_a_store(s3_bucket):
    address = f"{s3_bucket.address}/a table"
    stores = s3_bucket.options
    options = storage_options(stores)
    write_deltalake(address, TABLE, partition_by=["lang"], storage_options=options)
    found = rows_of(version_of(address, stores=stores))
    assert found == sorted(TABLE.to_pylist(), key=str)
    assert DELTA.fingerprint([address], stores) == {"tables": [[address, 0]]}
    assert DELTA.pin(None, address, stores) == f"{address}@v0"
    assert DELTA.pin(None, f"{s3_bucket.address}/none", stores) == f"{s3_bucket.address}/none"
