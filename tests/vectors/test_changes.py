"""The log of changes: who follows it from any version has the table."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_rounds import compare_rows_here, embed_here, write_lake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from module_graph import ROOT
from test_table_versions import KEYED, OTHER_MODEL

from pipelines.errors import DamagedFileError
from pipelines.files import storage
from pipelines.files.begun import next_folder
from pipelines.vectors import embed
from pipelines.vectors.changes import (
    CHANGES_FOLDER,
    ChangeLog,
    log_file,
    logs_after,
    read_changes,
    read_lineage,
    write_log,
)
from pipelines.vectors.keys import NEW, OLD
from pipelines.vectors.parts import RowRange
from pipelines.vectors.plan import Plan, Version, read_version
from pipelines.vectors.row_changes import ROWS, Logged, kinds_of, log_changes, stored_key_type
from pipelines.vectors.row_digests import digests_of_rows
from pipelines.vectors.store import open_table
from pipelines.vectors.table_job import INDEX_FOLDER, MANIFEST_FILE, PLAN_FILE

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Row = tuple[str | None, str | None]
"""Text and note of a row."""
Files = Sequence[Mapping[Any, Row]]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("note", pa.string()),
        ("embedding", pa.list_(pa.float32())),
    ]
)
ROUND = st.tuples(
    st.dictionaries(
        st.integers(0, 7),
        st.tuples(
            st.integers(0, 2),
            st.tuples(st.sampled_from(["cat", "dog", None]), st.sampled_from(["x", "y", None])),
        ),
        min_size=1,
    ),
    st.sampled_from(["aa", "aa", "bb"]),
)


def vector(text: str | None, model: str) -> list[float] | None:
    """A vector that belongs to a text and a model."""
    if text is None:
        return None
    digest = hashlib.sha256(f"{model} {text}".encode()).digest()
    return np.frombuffer(digest[:4], np.uint8).astype(np.float32).tolist()


def columns(rows: Mapping[Any, Row], model: str = "aa") -> pa.Table:
    keys = [*rows]
    found = [
        {"id": key, "text": text, "note": note, "embedding": vector(text, model)}
        for key, (text, note) in rows.items()
    ]
    strings = bool(keys) and isinstance(keys[0], str)
    schema = SCHEMA.set(0, pa.field("id", pa.string())) if strings else SCHEMA
    return pa.Table.from_pylist(found, schema)


def made(
    folder: Path,
    files: Files,
    before: Version | None = None,
    *,
    model: str = "aa",
    keep: int = 30,
    **identity: Any,
) -> tuple[Version, Logged]:
    """Makes a version of a table of files, beside the one before; equal files stay in a part."""
    folder.mkdir()
    build = 0 if before is None else before.plan.build + 1
    known = {}
    if before is not None and before.plan.identity["embedding.model"] == model:
        known = {
            str(pq.read_table(before.file(part)).to_pylist()): part
            for part in before.plan.parts
            if before.file(part).is_file()
        }
    parts = []
    for number, rows in enumerate(files):
        table = columns(rows, model)
        part = known.pop(str(table.to_pylist()), None)
        if part is None or before is None:
            name = f"part-{build:05d}-{number:05d}-00000"
            part = RowRange(name, Path("/lake/a.parquet"), 0, len(table))
            pq.write_table(table, folder / f"{name}.parquet")
        else:
            storage.link_or_copy(before.file(part), folder / f"{part.name}.parquet")
        parts.append(part)
    settings_ = KEYED | {"embedding.model": model} | identity
    plan = Plan(settings_, "openvino", "fp32", tuple(parts), build)
    plan.write(folder)
    logged = log_changes(
        Version(folder, plan, False), before, compare_rows_here, model_digest=model, keep=keep
    )
    lineage = vars(logged.lineage)
    storage.write_json(folder / MANIFEST_FILE, {"build": build, **lineage})
    return Version(folder, plan, True), logged


def example(named: str) -> dict[str, Any]:
    """The names that an example of the page defines."""
    page = (ROOT / "docs" / "concepts" / "vectors.md").read_text(encoding="utf-8")
    (code,) = (code for code in PYTHON.findall(page) if f"def {named}(" in code)
    found: dict[str, Any] = {}
    exec(code, found)
    return found


def rows_in(folder: Path) -> dict[Any, dict[str, Any]]:
    return {row["id"]: row for row in pq.read_table(folder).to_pylist()}


def log_of(folder: Path, version: int) -> dict[Any, str]:
    log = pq.read_table(log_file(folder, version))
    return dict(zip(log["key"].to_pylist(), log["change"].to_pylist(), strict=True))


def followed(folder: Path, rows: dict[Any, Any], logs: Sequence[ChangeLog]) -> dict[Any, Any]:
    """The rows of an earlier version, brought to the current one by its logs."""
    rows, current = dict(rows), rows_in(folder)
    for log in logs:
        for batch in read_changes(log):
            for change in batch.to_pylist():
                rows.pop(change["key"], None)
                # A row of a log may have left the table later, by another log.
                if change["change"] == "upsert" and change["key"] in current:
                    rows[change["key"]] = current[change["key"]]
    return rows


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(ROUND, min_size=2, max_size=5), keep=st.integers(0, 3))
def test_who_follows_from_any_version_has_the_table(rounds, keep, tmp_path_factory) -> None:
    home = tmp_path_factory.mktemp("followed")
    snapshots, version, models = [], None, []
    for number, (rows, model) in enumerate(rounds):
        files: list[dict[int, Row]] = [{}, {}, {}]
        for key, (file, row) in rows.items():
            files[file][key] = row
        version, logged = made(home / str(number), files, version, model=model, keep=keep)
        snapshots.append(rows_in(version.folder))
        models.append(model)
        if number and keep:
            before, after = snapshots[-2:]
            is_equal = models[-2] == model
            wanted = dict.fromkeys(before.keys() - after.keys(), "delete") | {
                key: "upsert"
                for key, row in after.items()
                if not (is_equal and before.get(key) == row)
            }
            assert log_of(version.folder, number) == wanted
            counts = logged.changes.fields(len(after))
            assert min(counts.values()) >= 0
            assert sum(counts.values()) == len(after) + counts["gone"]
            assert counts["new"] == len(after.keys() - before.keys())
    folder, newest = version.folder, len(rounds) - 1
    for number, rows in enumerate(snapshots):
        logs = logs_after(folder, number)
        if newest - number > keep:
            assert logs is None
            continue
        assert [log.version for log in logs] == [*range(number + 1, newest + 1)]
        assert followed(folder, rows, logs) == snapshots[-1]
    assert len(list(folder.glob(f"{CHANGES_FOLDER}/*"))) == min(keep, len(rounds))


def test_a_log_says_what_changed(tmp_path) -> None:
    stays = {1: ("same file", None)}
    first, logged = made(tmp_path / "0", [stays, {2: ("a", "x"), 3: ("b", "x"), 4: ("c", "x")}])
    assert logged.changes is None
    assert log_of(first.folder, 0) == dict.fromkeys([1, 2, 3, 4], "upsert")
    second = [stays, {3: ("b", "y"), 4: (None, "x"), 5: ("a", "x")}, {6: ("b", None)}]
    version, logged = made(tmp_path / "1", second, first)
    changes = {2: "delete", 3: "upsert", 4: "upsert", 5: "upsert", 6: "upsert"}
    assert log_of(version.folder, 1) == changes
    assert logged.changes.fields(5) == {
        "unchanged": 1,
        "changed": 1,
        "metadata": 1,
        "new": 2,
        "gone": 1,
    }
    assert str(logged.changes) == "2 new, 1 changed, 1 with other metadata only, 1 gone"
    (log,) = logs_after(version.folder, 0)
    assert (log.version, log.since, log.model_digest) == (1, 0, "aa")
    assert log.table == read_lineage(first.folder).table
    assert pq.read_schema(log.path).field("key").type == pa.int64()
    # The parts are named anew, in another order: no row is another.
    third = [dict(reversed(rows.items())) for rows in reversed(second)]
    version, logged = made(tmp_path / "2", third, version)
    assert (log_of(version.folder, 2), logged.changes.new) == ({}, 0)
    assert [log.version for log in logs_after(version.folder, 0)] == [1, 2]


def test_another_model_logs_all_keys(tmp_path) -> None:
    first, _ = made(tmp_path / "0", [{1: ("a", None), 2: (None, "x"), 3: ("b", None)}])
    rows = [{1: ("a", None), 2: (None, "x"), 4: ("b", None)}]
    version, logged = made(tmp_path / "1", rows, first, model=OTHER_MODEL["embedding.model"])
    assert log_of(version.folder, 1) == {1: "upsert", 2: "upsert", 3: "delete", 4: "upsert"}
    assert logged.lineage.changes_since == 0
    version, logged = made(
        tmp_path / "2", rows, version, model="bb", **{"embedding.output_column": "vector"}
    )
    assert (logged.lineage.changes_since, logged.changes.changed) == (1, 3)


def earlier_release(version: Version) -> Version:
    storage.write_json(version.folder / MANIFEST_FILE, {"build": version.plan.build})
    shutil.rmtree(version.folder / CHANGES_FOLDER)
    return version


def without_a_file(version: Version) -> Version:
    max(version.folder.glob("part-*")).unlink()
    return version


OTHER_KEYS = {
    "no version": ([{1: ("a", None)}, {2: ("b", None)}], earlier_release, {}),
    "another column": ([{1: ("a", None)}], lambda known: known, {"embedding.key_column": "note"}),
    "another type": ([{"1": ("a", None), "2": ("b", None)}], lambda known: known, {}),
    "a missing file": ([{1: ("a", None)}, {2: ("b", None)}], without_a_file, {}),
}


@pytest.mark.parametrize(("files", "changed", "identity"), OTHER_KEYS.values(), ids=[*OTHER_KEYS])
def test_a_table_with_other_keys_begins_a_new_chain(tmp_path, files, changed, identity) -> None:
    """Who follows has to read the whole table: the version before is not known by these keys."""
    first, _ = made(tmp_path / "0", files, **identity)
    rows = [{1: ("a", "m"), 3: ("c", "n")}]
    version, logged = made(tmp_path / "1", rows, changed(first))
    assert (logged.lineage.changes_since, logged.changes) == (None, None)
    log = log_of(version.folder, 1)
    assert {key: change for key, change in log.items() if change == "upsert"} == {
        1: "upsert",
        3: "upsert",
    }
    assert logs_after(version.folder, 0) is None
    assert [path.name for path in (version.folder / CHANGES_FOLDER).iterdir()] == ["00001.parquet"]
    following, _ = made(tmp_path / "2", rows, version)
    assert [log.since for log in logs_after(following.folder, 1)] == [1]


def test_a_table_without_keys_has_no_log(tmp_path) -> None:
    first, logged = made(tmp_path / "0", [{1: ("a", None)}], **{"embedding.key_column": None})
    assert not (first.folder / CHANGES_FOLDER).exists()
    assert (logged.lineage.version, logged.lineage.changes_since) == (0, None)
    assert logs_after(first.folder, 0) == ()
    assert logs_after(first.folder, 1) is None
    assert logs_after(tmp_path, 0) is None
    version, logged = made(tmp_path / "1", [{1: ("a", None)}], first)
    assert log_of(version.folder, 1) == {1: "upsert"}
    assert logged.lineage.table == read_lineage(first.folder).table


def test_repeated_keys_of_an_earlier_table_have_changed_unless_they_are_equal() -> None:
    def row(key: str, side: int, vector: bytes, rest: bytes) -> dict[str, Any]:
        return {"key": key, "side": side, "vector": vector, "rest": rest}

    rows = [
        *(
            row("equal", OLD, b"v", b"r"),
            row("equal", OLD, b"v", b"r"),
            row("equal", NEW, b"v", b"r"),
        ),
        *(row("one", OLD, b"v", b"r"), row("one", OLD, b"v", b"s"), row("one", NEW, b"v", b"r")),
        *(row("gone", OLD, b"v", b"r"), row("gone", OLD, b"w", b"r")),
    ]
    found = kinds_of(pa.Table.from_pylist(rows, ROWS)).to_pylist()
    assert found == [{"kind": "gone", "key": "gone"}, {"kind": "metadata", "key": "one"}]


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([pa.int32(), pa.uint8(), None], pa.int64()),
        ([pa.uint64()], pa.string()),
        ([pa.int64(), pa.string()], pa.string()),
        ([pa.dictionary(pa.int8(), pa.string())], pa.string()),
        ([pa.decimal128(20, 0)], pa.string()),
        ([pa.null(), pa.int16()], pa.int64()),
    ],
)
def test_keys_of_a_log_are_whole_numbers_or_strings(types, expected) -> None:
    assert stored_key_type(types) == expected


def test_the_example_keeps_a_dict_in_sync(tmp_path) -> None:
    follow = example("follow")["follow"]
    tables = [
        [{1: ("a", None), 2: ("b", "x")}, {3: ("c", None)}],
        [{1: ("a", None), 2: ("b", "y")}, {4: ("c", None)}],
        [{1: ("a", None), 4: ("c", None)}],
    ]
    version, folders = None, []
    for number, files in enumerate(tables):
        version, _ = made(tmp_path / str(number), files, version, keep=2)
        folders.append(version.folder)
    ids = [read_lineage(folder).made for folder in folders]
    for known, at in zip(folders, ids, strict=True):
        rows = rows_in(known)
        assert follow(folders[-1], rows, at) == ids[-1]
        assert rows == rows_in(folders[-1])
    # At first, and where too many versions were missed, or those of another table are known.
    for at, rows in ((None, {}), ("of another table", {9: {"id": 9}})):
        assert follow(folders[-1], rows, at) == ids[-1]
        assert rows == rows_in(folders[-1])
    rows = {}
    assert follow(folders[0], rows, None) == ids[0]
    assert rows == rows_in(folders[0])


def test_a_restored_table_has_other_versions_of_the_same_numbers(tmp_path) -> None:
    first, _ = made(tmp_path / "0", [{1: ("a", None)}])
    lost, _ = made(tmp_path / "lost", [{1: ("wrong", None)}], first)
    at, known = read_lineage(first.folder).made, read_lineage(lost.folder).made
    assert logs_after(lost.folder, 1, known) == ()
    again, _ = made(tmp_path / "1", [{1: ("right", None)}], first)
    assert logs_after(again.folder, 1, known) is None
    assert [log.since_made for log in logs_after(again.folder, 0, at)] == [at]
    later, _ = made(tmp_path / "2", [{1: ("right", "x")}], again)
    assert logs_after(later.folder, 1, known) is None
    assert [log.version for log in logs_after(later.folder, 0, at)] == [1, 2]


def test_the_example_makes_vectors_for_other_systems() -> None:
    float_vectors = example("float_vectors")["float_vectors"]
    kind = pa.list_(pa.float32(), 2)
    plain = pa.table(
        {"id": [1, 2, 3], "embedding": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32()))}
    )
    found = float_vectors(plain)
    assert found.schema.field("embedding").type == kind
    assert found.to_pylist() == [{"id": 1, "embedding": [1, 2]}, {"id": 3, "embedding": [3, 4]}]
    quantised = pa.table(
        {
            "embedding": pa.array([[127, -2], None], pa.list_(pa.int8())),
            "embedding_scale": pa.array([0.5, None], pa.float32()),
            "id": [1, 2],
        }
    )
    assert float_vectors(quantised).to_pylist() == [{"embedding": [63.5, -1], "id": 1}]
    assert plain["embedding"].cast(kind).to_pylist() == [[1, 2], None, [3, 4]]


def test_a_damaged_log_is_named(tmp_path) -> None:
    version, _ = made(tmp_path / "0", [{1: ("a", None)}])
    log = log_file(version.folder, 0)
    write_log(ChangeLog(7, 3, log), pa.int64(), [])
    with pytest.raises(DamagedFileError, match=r"00000.parquet is damaged \(it is the log of ver"):
        logs_after(version.folder, -1)
    pq.write_table(pa.table({"key": [1]}), log)
    with pytest.raises(DamagedFileError, match=r"00000.parquet is damaged"):
        logs_after(version.folder, -1)
    log.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DamagedFileError, match=r"00000.parquet is damaged"):
        logs_after(version.folder, -1)


VALUES = {
    "numbers": pa.array([1, None, 3, 1]),
    "texts": pa.array(["a", None, "", "ü"]),
    "flags": pa.array([True, False, None, True]),
    "vectors": pa.array([[1.0, 2.0], None, [], [1.0]], pa.list_(pa.float32())),
    "holes": pa.array([[1.0, None], [3.0], [None], None], pa.list_(pa.float64())),
    "words": pa.array([["a", "b"], ["ab"], None, ["", "ab"]]),
    "records": pa.array([{"x": 1, "y": "q"}, None, {"x": None, "y": "q"}, {"x": 1, "y": None}]),
    "maps": pa.array([[("k", 1)], None, [], [("k", None)]], pa.map_(pa.string(), pa.int64())),
    "days": pa.array([datetime.date(2020, 1, 1), None, datetime.date(2021, 1, 1), None]),
    "prices": pa.array([decimal.Decimal("1.00"), None, decimal.Decimal("2.00"), None]),
    "pairs": pa.array([[1, 2], None, [2, 1], [1, 1]], pa.list_(pa.int8(), 2)),
    "lists": pa.array([[["a"], []], None, [[], ["a"]], [["a", None]]]),
    "nothing": pa.nulls(4),
    "halves": pa.array([np.float16(1), None, np.float16(2), None], pa.float16()),
    "times": pa.array([datetime.time(1), None, datetime.time(2), None], pa.time64("us")),
    "moments": pa.array([1, None, 2, 1], pa.timestamp("ms", "UTC")),
    "spans": pa.array([1, None, 2, 1], pa.duration("us")),
    "large numbers": pa.array([2**64 - 1, None, 0, 1], pa.uint64()),
    "long numbers": pa.array([decimal.Decimal(10**40), None, decimal.Decimal(1), None]),
    "bytes": pa.array([b"\xff", None, b"", b"\0"]),
    "digits": pa.array([b"12", None, b"21", b"11"], pa.binary(2)),
    "runs": pa.RunEndEncodedArray.from_arrays([2, 4], pa.array(["a", "b"])),
    "tensors": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]),
        pa.array([[1, 2], None, [2, 1], None], pa.list_(pa.int32(), 2)),
    ),
}


def digests(**found: pa.Array) -> list[bytes]:
    batch = pa.record_batch(found)
    return digests_of_rows(batch, batch.schema.names).to_pylist()


@pytest.mark.parametrize("column", VALUES.values(), ids=[*VALUES])
def test_a_digest_is_of_the_values_of_a_row(column) -> None:
    found = digests(a=column)
    values = [str(value) for value in column.to_pylist()]
    assert [found.index(digest) for digest in found] == [values.index(value) for value in values]
    assert digests(a=column.slice(2)) == found[2:]
    twice = pa.concat_arrays([column, column])
    assert digests(a=twice.slice(3, 3)) == [found[3], found[0], found[1]]
    # A null is as good as no column.
    is_there = [value is not None for value in column.to_pylist()]
    assert [
        one != other for one, other in zip(found, digests(a=pa.nulls(4)), strict=True)
    ] == is_there
    assert [one != other for one, other in zip(found, digests(b=column), strict=True)] == is_there


def test_a_digest_is_of_a_value_in_any_storage() -> None:
    texts, numbers = VALUES["texts"], VALUES["numbers"]
    for kind in (pa.large_string(), pa.binary()):
        assert digests(a=texts.cast(kind)) == digests(a=texts)
    assert digests(a=texts.dictionary_encode()) == digests(a=texts)
    assert digests(a=numbers.cast(pa.int8())) == digests(a=numbers)
    assert digests(a=numbers, b=texts) == digests(b=texts, a=numbers)
    assert digests(a=numbers.cast(pa.float64()))[0] != digests(a=numbers)[0]
    # Two columns share no bytes with one.
    (one,), (two,) = (
        digests(a=pa.array(["xb"])),
        digests(a=pa.array(["x"]), b=pa.array(["b"])),
    )
    assert one != two


FIRST = {"a": [(1, "one"), (2, "two")], "b": [(3, "three"), (4, None)]}
LATER = {"a": FIRST["a"], "b": [(3, "3"), (4, None), (5, "new")]}


@pytest.fixture
def keyed(job, tmp_path):
    """Makes the configuration of a job on a lake of keys and texts."""
    write_lake(tmp_path / "lake", FIRST)

    def configured(**settings_):
        known = {"inputs": [str(tmp_path / "lake")], "key_column": "id", "part_rows": 1}
        return job(**(known | settings_))

    return configured


@pytest.mark.slow
def test_a_job_killed_around_its_log_makes_up_for_it(keyed, tmp_path, monkeypatch) -> None:
    """Wherever it dies, there is the old table with its log, or the new one with its log."""
    table = tmp_path / "table"
    embed_here(keyed())
    for number, (module, name) in enumerate(
        [("row_changes", "write_log"), ("row_changes", "carry_over"), ("embed", "finish")]
    ):
        rows = FIRST if number % 2 else LATER
        write_lake(tmp_path / "lake", rows)
        known = {path: path.stat().st_ino for path in sorted(table.rglob("*"))}

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(f"pipelines.vectors.{module}.{name}", dies)
            embed_here(keyed())
        assert {path: path.stat().st_ino for path in sorted(table.rglob("*"))} == known
        assert not (next_folder(table) / MANIFEST_FILE).exists()
        embed_here(keyed())
        versions_ = [log.version for log in logs_after(table, 0)]
        assert versions_ == [*range(1, number + 2)]
        expected = {3: "upsert", 5: "delete" if number % 2 else "upsert"}
        assert log_of(table, number + 1) == expected
    # Whole, with its log, and not yet in its place.
    write_lake(tmp_path / "lake", FIRST)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("embedding_rounds.publish", dies)
        embed_here(keyed())
    assert read_lineage(table).version == 3
    log = log_file(next_folder(table), 4).stat().st_ino
    embed_here(keyed())
    assert log_file(table, 4).stat().st_ino == log
    assert log_of(table, 4) == {3: "upsert", 5: "delete"}
    # A job that changes nothing writes none.
    embed_here(keyed())
    assert len(list((table / CHANGES_FOLDER).iterdir())) == 5


@pytest.mark.slow
def test_readers_of_the_table_pass_its_logs_by(keyed, tmp_path) -> None:
    table = tmp_path / "table"
    embed_here(keyed())
    write_lake(tmp_path / "lake", LATER)
    embed_here(keyed(keep_changes=1))
    assert [path.name for path in (table / CHANGES_FOLDER).iterdir()] == ["00001.parquet"]
    assert sorted(pq.read_table(table)["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert sorted(pd.read_parquet(table)["id"]) == [1, 2, 3, 4, 5]
    assert open_table(table).rows == 5
    # The folder is still ours, with the index too, and goes with the table that replaces it.
    (table / INDEX_FOLDER).mkdir()
    embed.EmbeddingJob.of(keyed(overwrite=True)).check()
    embed_here(keyed(keep_changes=0))
    manifest = storage.read_json(table / MANIFEST_FILE)
    assert (manifest["version"], manifest["changes_since"]) == (1, 0)
    write_lake(tmp_path / "lake", FIRST)
    embed_here(keyed(keep_changes=0))
    manifest = storage.read_json(table / MANIFEST_FILE)
    assert (manifest["version"], manifest["changes_since"], manifest["changes"]) == (2, None, None)
    assert not (table / CHANGES_FOLDER).exists()
    # Who knows this version can follow again.
    write_lake(tmp_path / "lake", LATER)
    embed_here(keyed())
    assert [log.since for log in logs_after(table, 2)] == [2]
    assert read_version(table).plan.build == 3
    assert (table / PLAN_FILE).is_file()
