"""Merging into real Delta and Iceberg tables, made by their libraries, without Spark."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pipelines.corpus.readers.delta import storage_options
from pipelines.errors import InputError
from pipelines.files.locations import location
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.vectors.changes import ChangeLog, carry_over, log_file, write_log
from pipelines.vectors.library_merge import DELTA, ICEBERG, Rows, schema_in_lake

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("the.text", pa.string()),
        ("Lang`x", pa.string()),
        ("small", pa.int8()),
        ("within", pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))])),
        ("when", pa.timestamp("ms", "Europe/Berlin")),
        ("embedding", pa.list_(pa.float32())),
    ]
)


def row(key, text="a", **more):
    known = {
        "id": key,
        "the.text": text,
        "Lang`x": "de",
        "small": 1,
        "within": {"x": 1, "y": ["z", None]},
        "when": None,
        "embedding": None if text is None else [0.5, len(text)],
    }
    return known | more


class Vectors:
    """A table of vectors in versions, with its logs."""

    def __init__(self, home: Path, schema: pa.Schema = SCHEMA) -> None:
        self.home, self.schema = home, schema
        self.table = uuid.uuid4().hex
        self.version = -1
        self.made: str | None = None
        self.rows: dict = {}

    @property
    def folder(self) -> Path:
        return self.home / f"version-{self.version}"

    def update(self, rows: list[dict], gone=(), *, logged=True) -> Rows:
        before = self.folder
        since, since_made = self.version if self.version >= 0 else None, self.made
        self.version, self.made = self.version + 1, uuid.uuid4().hex
        changed = {row["id"]: row for row in rows}
        self.rows = {**self.rows, **changed}
        for key in gone:
            del self.rows[key]
        self.folder.mkdir(parents=True)
        table = pa.Table.from_pylist([*self.rows.values()], self.schema)
        half = table.num_rows // 2
        pq.write_table(table.slice(0, half), self.folder / "part-0.parquet", row_group_size=2)
        pq.write_table(table.slice(half), self.folder / "part-1.parquet")
        manifest = {"version": self.version, "table": self.table, "changes_since": since}
        manifest["made"] = self.made
        (self.folder / "_manifest.json").write_text(json.dumps(manifest))
        (self.folder / "_changes").mkdir()
        if since is not None:
            carry_over(before, since, self.folder, 30)
        if logged:
            place = log_file(self.folder, self.version)
            log = ChangeLog(self.version, since, place, None, self.table, since_made)
            kind = self.schema.field("id").type
            keys = pa.array([*changed, *gone], kind)
            kinds = pa.array(["upsert"] * len(changed) + ["delete"] * len(gone))
            write_log(log, kind, [pa.record_batch([keys, kinds], ["key", "change"])])
        return self.as_rows()

    def as_rows(self) -> Rows:
        return Rows.of(self.folder, "id")

    def expected(self) -> list:
        return ordered(pa.Table.from_pylist([*self.rows.values()], self.schema))


def ordered(table: pa.Table) -> list:
    return sorted(table.to_pylist(), key=lambda row: str(row["id"]))


@pytest.fixture(params=["delta", "iceberg"])
def target(request, tmp_path):
    """A target of each kind: its writer and name, and how to read it."""
    if request.param == "delta":
        place = tmp_path / "lake" / "a table"
        return DELTA, str(place), lambda: pa.table(DeltaTable(str(place)).scan())
    lake = request.getfixturevalue("lake")
    return ICEBERG, "lake.db.vectors", lambda: lake.load_table("db.vectors").scan().to_arrow()


@pytest.fixture
def vectors(tmp_path) -> Vectors:
    return Vectors(tmp_path / "vectors")


def merge(target, rows: Rows) -> int | None:
    writer, name, _ = target
    writer.check_target(name, rows.folder, DEFAULT_STORES)
    return writer.merge(rows, name, DEFAULT_STORES)


def test_three_updates_equal_the_table(target, vectors):
    read: Callable = target[2]
    assert merge(target, vectors.update([row(key) for key in range(8)])) is None
    assert ordered(read()) == vectors.expected()
    # Changed, new and gone; a text that went; another column only.
    update = [row(1, "new"), row(2, None), row(3, small=None), row(9, "ü")]
    assert merge(target, vectors.update(update, [0])) == 5
    assert ordered(read()) == vectors.expected()
    vectors.update([row(0, "again")], [5, 9])
    assert merge(target, vectors.update([row(5, "back")], [0])) == 3
    assert ordered(read()) == vectors.expected()
    assert merge(target, vectors.update([], [6])) == 1
    assert merge(target, vectors.as_rows()) == 0
    assert ordered(read()) == vectors.expected()
    assert read().schema.field("embedding").type.value_type == pa.float32()


def test_without_a_chain_of_logs_all_rows_are_compared(target, vectors):
    merge(target, vectors.update([row(key) for key in range(5)]))
    vectors.update([row(1, "b")], [0], logged=False)
    assert merge(target, vectors.update([row(7)], [2])) is None
    assert ordered(target[2]()) == vectors.expected()
    again = Vectors(vectors.home / "again")
    assert merge(target, again.update([row(1, "other table")])) is None
    assert ordered(target[2]()) == again.expected()


def test_a_restored_table_is_merged_again(target, vectors):
    merge(target, vectors.update([row(key) for key in range(5)]))
    backup = copy(vectors)
    merge(target, vectors.update([row(1, "wrong"), row(2, "wrong")]))
    shutil.rmtree(vectors.folder)
    assert merge(target, backup.update([row(1, "right")])) is None
    assert ordered(target[2]()) == backup.expected()


def test_rows_that_others_changed_come_back(target, vectors, request):
    merge(target, vectors.update([row(key) for key in range(5)]))
    if target[0] is DELTA:
        table = DeltaTable(target[1])
        table.optimize.compact()
        assert merge(target, vectors.update([row(1, "b")])) == 1
        DeltaTable(target[1]).delete("id = 3")
    else:
        request.getfixturevalue("lake").load_table("db.vectors").delete("id = 3")
    assert merge(target, vectors.update([row(2, "c")])) is None
    assert ordered(target[2]()) == vectors.expected()


def test_a_new_column_is_added(target, vectors):
    merge(target, vectors.update([row(key) for key in range(4)]))
    vectors.schema = vectors.schema.append(pa.field("more", pa.list_(pa.int32())))
    vectors.rows = {key: {**known, "more": None} for key, known in vectors.rows.items()}
    assert merge(target, vectors.update([row(1, "b", more=[1, 2])])) == 1
    assert ordered(target[2]()) == vectors.expected()
    assert merge(target, vectors.update([row(2, more=[3])], logged=False)) is None
    assert ordered(target[2]()) == vectors.expected()


def test_quantised_vectors_and_keys_of_text(target, tmp_path):
    schema = pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.int8()))])
    vectors = Vectors(tmp_path / "vectors", schema)
    merge(target, vectors.update([{"id": f"k'{n}", "embedding": [n, -n]} for n in range(4)]))
    update = [{"id": "k'1", "embedding": None}, {"id": 'new"', "embedding": [127, -127]}]
    assert merge(target, vectors.update(update, ["k'0"])) == 3
    assert ordered(target[2]()) == vectors.expected()


def test_a_partitioned_table_stays_partitioned(target, vectors, request):
    if target[0] is DELTA:
        from deltalake import write_deltalake

        schema = schema_in_lake("t", "id", SCHEMA, None, has_small_integers=True)
        write_deltalake(target[1], schema.empty_table(), partition_by=["Lang`x"])
    else:
        lake = request.getfixturevalue("lake")
        schema = schema_in_lake("t", "id", SCHEMA, None, has_small_integers=False)
        with lake.create_table("db.vectors", schema=schema).update_spec() as spec:
            spec.add_identity("Lang`x")
    merge(target, vectors.update([row(key, **{"Lang`x": str(key % 2)}) for key in range(6)]))
    assert ordered(target[2]()) == vectors.expected()
    assert merge(target, vectors.update([row(1, **{"Lang`x": "0"}), row(9)], [2])) == 3
    assert ordered(target[2]()) == vectors.expected()


def test_a_target_with_other_columns_is_refused_and_stays(target, vectors, tmp_path):
    merge(target, vectors.update([row(1)]))
    before = ordered(target[2]())
    fewer = Vectors(
        tmp_path / "fewer", pa.schema([field for field in SCHEMA if field.name != "when"])
    )
    with pytest.raises(
        InputError, match=r"^embedding.merge_into: .* has a column `when`, which the"
    ):
        merge(target, fewer.update([row(1)]))
    other = pa.schema([("id", pa.int64()), ("the.text", pa.int64()), *[*SCHEMA][2:]])
    number = Vectors(tmp_path / "other", other)
    with pytest.raises(InputError, match=r"`the.text` of .* holds .*string.* the rows have int64"):
        merge(target, number.update([row(1) | {"the.text": 5}]))
    assert ordered(target[2]()) == before


def test_targets_out_of_reach_are_refused_at_once(tmp_path, lake):
    with pytest.raises(InputError, match=r"knows no catalog for `lake\.db\.t`\. Name the folder"):
        DELTA.check_target("lake.db.t", tmp_path, DEFAULT_STORES)
    with pytest.raises(InputError, match=r"knows no catalog `sea`.* ~/\.pyiceberg\.yaml"):
        ICEBERG.check_target("sea.db.t", tmp_path, DEFAULT_STORES)
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    for inside in (tmp_path / "table" / "in", f"file://{tmp_path}/table", tmp_path / "link"):
        with pytest.raises(InputError, match="overlaps with"):
            DELTA.check_target(str(inside), tmp_path / "table", DEFAULT_STORES)
    output = location("s3://bucket/vectors", DEFAULT_STORES)
    with pytest.raises(InputError, match=r"b%20c cannot be written \(deltalake takes the percent"):
        DELTA.check_target(str(tmp_path / "b%20c"), output, DEFAULT_STORES)
    ICEBERG.check_target("lake.db.t", tmp_path, DEFAULT_STORES)


def test_a_target_in_a_store(vectors, s3_bucket):
    address, stores = f"{s3_bucket.address}/a table", s3_bucket.options
    DELTA.check_target(address, vectors.home, stores)
    assert DELTA.merge(vectors.update([row(1), row(2)]), address, stores) is None
    assert DELTA.merge(vectors.update([row(3)], [1]), address, stores) == 2
    table = DeltaTable(address, storage_options=storage_options(stores))
    assert ordered(pa.table(table.scan())) == vectors.expected()


KILLED = """
import sys
from pathlib import Path
from pipelines.settings.spark import DEFAULT_STORES
from pipelines.vectors import library_merge
writer = getattr(library_merge, sys.argv[1])
rows = library_merge.Rows.of(Path(sys.argv[2]), "id")
print("ready", flush=True)
sys.stdin.read(1)
writer.merge(rows, sys.argv[3], DEFAULT_STORES)
"""


@pytest.mark.slow
def test_a_killed_merge_leaves_the_target_as_it_was(target, vectors, tmp_path):
    """The kill comes when the first new file of data is there, before the commit."""
    writer, name, read = target
    vectors.schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32()))])
    vectors.update([{"id": key, "embedding": [key / 7] * 64} for key in range(2000)])
    merge(target, vectors.as_rows())
    before = vectors.expected()
    vectors.update([{"id": key, "embedding": [key / 9] * 64} for key in range(1000)], [1999])

    def files() -> set[Path]:
        return {*tmp_path.glob("lake/**/*.parquet"), *tmp_path.glob("warehouse/**/*.parquet")}

    known = files()
    kind = "DELTA" if writer is DELTA else "ICEBERG"
    command = [sys.executable, "-c", KILLED, kind, str(vectors.folder), name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while files() == known and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert ordered(read()) in (before, vectors.expected())
    assert merge(target, vectors.as_rows()) in (1001, 0)
    assert ordered(read()) == vectors.expected()
