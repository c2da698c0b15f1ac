"""A store ends equal to the table, whatever has happened to either."""

from __future__ import annotations

import datetime
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest
from publish_stores import STORES
from vector_tables import VectorTables

import pipelines
from pipelines.catalog import STORES as KINDS
from pipelines.cli import main
from pipelines.errors import InputError, NothingNew, PipelineError
from pipelines.files import versions
from pipelines.files.locks import held, is_lock
from pipelines.publishing import publish as job
from pipelines.publishing.plan import parse_state
from pipelines.publishing.publish import PublishSummary
from pipelines.publishing.rows import source_of
from pipelines.publishing.store import Layout, opened
from pipelines.settings.load import parse
from pipelines.vectors.embedding import quantised
from pipelines.vectors.store import open_table

OTHER_MODEL = "fedcba9876543210" * 4


# A second form of a store, or a server that takes seconds to start.
MORE = ("qdrant_folder", "milvus", "elasticsearch")
# Needs no server, and takes little time.
QUICK = "lancedb"


def marks_of(store):
    marks = [] if store == QUICK else [pytest.mark.slow]
    return [*marks, pytest.mark.matrix] if store in MORE else marks


@pytest.fixture(params=[pytest.param(name, marks=marks_of(name)) for name in STORES])
def served(request, tmp_path):
    """Each store, for what it does in its own way."""
    with STORES[request.param](tmp_path) as store:
        yield store


# For what the job decides: a store in a folder, and one behind a server.
FEW = (QUICK, "pgvector")
SOME = [
    pytest.param(name, marks=marks_of(name) if name in FEW else [pytest.mark.matrix])
    for name in STORES
]
of_the_job = pytest.mark.parametrize("served", SOME, indirect=True)


@pytest.fixture
def table(tmp_path):
    return VectorTables(tmp_path / "embedded")


def rows_of(count: int, text: str = "text", **changed: str | None) -> list[dict]:
    return [
        {
            "id": number,
            "text": changed.get(f"at_{number}", f"{text} {number}"),
            "topic": "even" if number % 2 == 0 else "odd",
            "year": 2000 + number,
            "score": number / 4,
            "tags": [f"t{number % 3}", "all"],
        }
        for number in range(count)
    ]


def config_of(served, table: VectorTables, monkeypatch=None, **changes):
    target = served.target
    settings = {
        "store": target.store,
        "address": target.address,
        "user": target.user,
        "collection": target.collection,
        "filters": ["topic", "year"],
        **changes,
    }
    return parse({"publish": settings, "embedding": {"output": str(table.folder)}})


def publish(served, table, monkeypatch, **changes) -> PublishSummary:
    if served.target.secret:
        monkeypatch.setenv("PUBLISH_PASSWORD", served.target.secret)
    return pipelines.publish(config_of(served, table, **changes))


def same(served, table: VectorTables, name: str | None = None) -> None:
    """Has a collection, the one for readers by default, the rows of the table and no others."""
    found = served.rows(name or served.target.collection)
    expected = table.expected()
    assert {*found} == {*expected}
    for key, (kept, payload) in expected.items():
        row = dict(found[key])
        vectors = [np.asarray(row.pop("embedding")), kept]
        if served.target.store == "qdrant":
            # It compares by cosine. Its server keeps vectors of length 1, its folder what it got;
            # those from int8 are not quite as long.
            vectors = [vector / np.linalg.norm(vector) for vector in vectors]
        np.testing.assert_allclose(*vectors, atol=1e-6)
        assert row.pop("id") == key
        assert {name: plain(value) for name, value in row.items()} == {
            name: plain(value) for name, value in payload.items() if value is not None
        }


def plain(value):
    return list(value) if isinstance(value, (list, np.ndarray)) else value


def test_it_follows_new_changed_and_deleted_rows(served, table, monkeypatch):
    table.write(rows_of(250, at_7=None))
    first = publish(served, table, monkeypatch)
    assert (first.rows, first.upserted, first.deleted, first.left_out) == (249, 249, 0, 1)
    same(served, table)

    rows = rows_of(250, at_3="another text", at_7="a text at last")
    rows[5] = {**rows[5], "topic": "five"}  # Of the text nothing changes.
    del rows[100:110]
    table.write([*rows, {**rows[0], "id": 1000, "text": "new"}])
    second = publish(served, table, monkeypatch)
    assert (second.rows, second.upserted, second.deleted) == (241, 4, 10)
    assert second.collection == first.collection
    same(served, table)

    table.write([{**row, "text": None if row["id"] == 9 else row["text"]} for row in rows])
    third = publish(served, table, monkeypatch)
    assert (third.rows, third.upserted, third.deleted, third.left_out) == (239, 0, 1, 1)
    same(served, table)

    again = publish(served, table, monkeypatch)
    assert str(again) == "nothing to write"
    with pytest.raises(NothingNew, match=r"documents has version 2 of the table already"):
        pipelines.publish(config_of(served, table).changed("run", only_new=True))


@of_the_job
def test_several_versions_are_caught_up_at_once(served, table, monkeypatch):
    table.write(rows_of(120))
    publish(served, table, monkeypatch)
    table.write(rows_of(110, at_1="changed"))
    table.write(rows_of(120, "other"))
    table.write(rows_of(115, "other", at_2="changed"))
    made = publish(served, table, monkeypatch)
    assert (made.rows, made.upserted, made.deleted) == (115, 115, 5)
    same(served, table)


def test_another_model_gets_a_collection_of_its_own(served, table, monkeypatch):
    table.write(rows_of(60))
    first = publish(served, table, monkeypatch)
    old = table.expected()
    table.width = 12
    table.write(rows_of(60), model=OTHER_MODEL)
    second = publish(served, table, monkeypatch)
    same(served, table)
    assert second.upserted == 60
    if second.collection != second.name:
        assert second.collection == f"documents_{OTHER_MODEL[:8]}"
        # The one before is kept, as it was.
        assert {*served.rows(first.collection)} == {*old}
    # Back to the first model, whose collection is older than the table.
    table.width = 8
    table.write(rows_of(61), model="0123456789abcdef" * 4)
    publish(served, table, monkeypatch)
    same(served, table)


@of_the_job
def test_a_table_without_the_log_is_read_whole(served, table, monkeypatch):
    table.keep = 1
    table.write(rows_of(50))
    first = publish(served, table, monkeypatch)
    table.write(rows_of(49, at_1="changed"))
    table.write(rows_of(48, at_2="changed"))
    second = publish(served, table, monkeypatch, keep_old=0)
    assert (second.upserted, second.rows) == (48, 48)
    same(served, table)
    if first.collection != first.name:
        assert second.collection == f"{first.collection}_2"
        with pytest.raises(Exception, match=first.collection):
            served.rows(first.collection)


@of_the_job
def test_another_table_replaces_the_rows_on_request(served, table, tmp_path, monkeypatch):
    table.write(rows_of(40))
    publish(served, table, monkeypatch)
    other = VectorTables(tmp_path / "other")
    other.write(rows_of(30, "other"))
    with pytest.raises(InputError, match="`documents` has the rows of another table"):
        publish(served, other, monkeypatch)
    same(served, table)
    assert publish(served, other, monkeypatch, overwrite=True).upserted == 30
    same(served, other)


def test_other_columns_make_a_new_collection(served, table, monkeypatch):
    table.write(rows_of(30))
    publish(served, table, monkeypatch)
    made = publish(served, table, monkeypatch, columns=["topic", "text"], filters=["topic"])
    assert made.upserted == 30
    found = served.rows("documents")
    assert found[3].keys() == {"id", "embedding", "topic", "text"}
    publish(served, table, monkeypatch, columns=[], filters=[])
    assert served.rows("documents")[3].keys() == {"id", "embedding"}


def test_keys_may_be_strings_with_any_character(served, tmp_path, monkeypatch):
    table = VectorTables(tmp_path / "embedded", key_type=pa.string())
    names = ["plain", "it's", 'a "quote"', "ü\U0001f600", "a/b?c=1&d", "back\\slash", " blank "]
    table.write([{"id": name, "text": name, "topic": "x", "year": 1} for name in names])
    publish(served, table, monkeypatch)
    same(served, table)
    table.write([{"id": name, "text": name, "topic": "y", "year": 1} for name in names[::2]])
    made = publish(served, table, monkeypatch)
    assert (made.upserted, made.deleted) == (4, 3)
    same(served, table)


@of_the_job
def test_int8_vectors_are_multiplied_out(served, tmp_path, monkeypatch):
    table = VectorTables(tmp_path / "embedded", int8=True)
    table.write(rows_of(40, at_3=None))
    assert publish(served, table, monkeypatch).rows == 39
    same(served, table)


def test_int8_vectors_are_kept_where_a_store_compares_them(served, tmp_path, monkeypatch):
    table = VectorTables(tmp_path / "embedded", int8=True)
    table.write(rows_of(10))
    kind, target = kind_and_target(served)
    if not kind.has_int8:
        with pytest.raises(InputError, match=rf"^publish\.int8: {target.store} .* no int8 vectors"):
            publish(served, table, monkeypatch, int8="keep")
        return
    publish(served, table, monkeypatch, int8="keep")
    found = served.rows("documents")
    for key, row in table.rows.items():
        values, _ = quantised(table.vector(row)[None])
        assert found[key]["embedding"] == values[0].tolist()
    with pytest.raises(InputError, match=r"^publish\.metric: int8 vectors without their scales"):
        publish(served, table, monkeypatch, int8="keep", metric="dot")


def test_values_of_other_types_come_whole(served, table, monkeypatch):
    moment = datetime.datetime(2026, 11, 27, 8, 30, 5, 123456, tzinfo=datetime.UTC)
    day = datetime.date(2026, 11, 27)
    rows = [
        {"id": 1, "text": "a", "topic": "x", "year": 1, "at": moment, "day": day, "yes": True},
        {"id": 2, "text": "b", "topic": "x", "year": 2, "at": None, "day": None, "yes": None},
    ]
    table.write(rows)
    publish(served, table, monkeypatch)
    found = served.rows("documents")
    assert {*found[2]} == {"id", "embedding", "text", "topic", "year"}
    assert str(found[1]["yes"]) == "True"
    assert str(found[1]["day"]).startswith("2026-11-27")
    assert "08:30:05.123456" in str(found[1]["at"])


@of_the_job
def test_overwrite_builds_again_what_somebody_has_changed(served, table, monkeypatch, caplog):
    table.write(rows_of(30))
    first = publish(served, table, monkeypatch)
    kind, target = kind_and_target(served)
    layout = layout_of(served, table)
    with opened(kind, target) as store:
        store.delete(first.collection, layout, pa.array([3, 4]))
    caplog.set_level("WARNING", "pipelines")
    assert publish(served, table, monkeypatch).rows == 28
    assert "has 28 rows, and the table has 30 with a vector" in caplog.text
    assert publish(served, table, monkeypatch, overwrite=True).upserted == 30
    same(served, table)


def kind_and_target(served):
    return KINDS.load(served.target.store), served.target


def layout_of(served, table: VectorTables) -> Layout:
    return source_of(open_table(str(table.folder)), config_of(served, table).publish).layout


def test_a_collection_of_others_is_refused(served, table, monkeypatch):
    table.write(rows_of(5))
    kind, target = kind_and_target(served)
    layout = layout_of(served, table)
    with opened(kind, target) as store:
        store.create("documents", layout, "made by somebody else")
    with pytest.raises(InputError, match=r"^publish\.collection: .*`documents` that `publish` has"):
        publish(served, table, monkeypatch, overwrite=True)
    with opened(kind, target) as store:
        assert store.collections() == {"documents": "made by somebody else"}
        assert store.count("documents") == 0


def test_the_command_tells_its_work_before_and_after(table, tmp_path, capsys):
    table.write(rows_of(20, at_3=None), part_rows=5)
    lance, outcome = tmp_path / "lance", tmp_path / "outcome.json"
    settings = [
        "publish.store=lancedb",
        f"publish.address={lance}",
        f"embedding.output={table.folder}",
    ]
    given = [part for setting in settings for part in ("--set", setting)]

    def told(*options: str, code: int = 0) -> list[str]:
        assert main(["publish", *options, *given]) == code
        return capsys.readouterr().out.splitlines()

    whole = "20 of 20 rows are read and written"
    created = f"documents_01234567 is created; {whole}; documents is switched to it"
    assert told("--dry-run") == [created]
    assert not lance.exists() or not list(lance.iterdir())
    lines = told("--outcome", str(outcome))
    assert lines[0].startswith("19 rows written, 0 deleted (")
    assert lines[0].endswith(" s), 1 without a vector left out")
    assert lines[1] == "store   documents, version 0: 19 rows"
    results = json.loads(outcome.read_text())["results"]
    assert (results["rows"], results["upserted"], results["version"]) == (19, 19, 0)
    table.write(rows_of(18, at_3=None, at_4="changed"), part_rows=5)
    assert told("--dry-run") == ["1 changed and 2 removed keys since version 0 are applied"]
    told()
    assert told("--dry-run") == ["documents has version 1 already"]
    given += ["--set", "run.only_new=true"]
    assert told("--outcome", str(outcome), code=4) == []
    assert json.loads(outcome.read_text())["exit_code"] == 4


@of_the_job
def test_a_collection_with_other_rows_than_the_table_gets_no_readers(served, table, monkeypatch):
    table.write(rows_of(30))
    manifest = table.folder / "_manifest.json"
    manifest.write_text(manifest.read_text().replace('"texts": 30', '"texts": 31'))
    told = (
        r"publishing: documents_01234567 has 30 rows, and the table has 31 with a vector. It is dr"
    )
    with pytest.raises(PipelineError, match=told):
        publish(served, table, monkeypatch)
    kind, target = kind_and_target(served)
    with opened(kind, target) as store:
        assert (dict(store.collections()), store.current()) == ({}, None)


def test_old_collections_go_with_a_later_job_too(served, table, monkeypatch):
    table.write(rows_of(20))
    publish(served, table, monkeypatch)
    table.write(rows_of(20), model=OTHER_MODEL)
    made = publish(served, table, monkeypatch)
    with pytest.raises(NothingNew):
        pipelines.publish(config_of(served, table, keep_old=0).changed("run", only_new=True))
    kind, target = kind_and_target(served)
    with opened(kind, target) as store:
        assert [*store.collections()] == [made.collection]
    same(served, table)


@pytest.fixture
def postgres(tmp_path):
    with STORES["pgvector"](tmp_path) as store:
        yield store


def test_a_restored_table_is_published_again(table, tmp_path, monkeypatch):
    """Versions after a backup count the same numbers as those that the store knows."""
    with STORES["lancedb"](tmp_path) as served:
        table.write(rows_of(30))
        publish(served, table, monkeypatch)
        shutil.copytree(table.folder, tmp_path / "backup")
        backup = replace(table)
        table.write(rows_of(30, at_3="wrong", at_4="wrong"))
        publish(served, table, monkeypatch)
        shutil.rmtree(table.folder)
        shutil.copytree(tmp_path / "backup", table.folder)
        backup.write(rows_of(30, at_3="right"))
        assert publish(served, backup, monkeypatch).version == 1
        same(served, backup)


def test_a_table_of_an_earlier_release_is_written_once(table, tmp_path, monkeypatch):
    table.write(rows_of(30))
    manifest = json.loads((table.folder / "_manifest.json").read_text())
    for name in ("version", "table", "changes_since", "made"):
        del manifest[name]
    (table.folder / "_manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(table.folder / "_changes")
    with STORES["lancedb"](tmp_path) as served:
        assert publish(served, table, monkeypatch).upserted == 30
        assert str(publish(served, table, monkeypatch)) == "nothing to write"


def test_a_table_of_mostly_changed_rows_is_written_whole(table, tmp_path, monkeypatch):
    table.write(rows_of(20))
    with STORES["lancedb"](tmp_path) as served:
        publish(served, table, monkeypatch)
        changed = {f"at_{number}": "changed" for number in range(9)}
        table.write(rows_of(19, **changed, at_18=None))
        made = publish(served, table, monkeypatch)
        assert (made.upserted, made.deleted, made.left_out) == (18, 1, 1)
        same(served, table)


def test_one_job_at_a_time_writes_a_collection_from_a_bucket(table, s3_bucket, tmp_path):
    table.write(rows_of(3))
    place = s3_bucket.root / "vectors"
    versions.put_folder(table.folder, place)
    settings = {"store": "lancedb", "address": str(tmp_path / "lance")}
    embedded = {"output": f"{s3_bucket.address}/vectors"}
    stores = s3_bucket.options.model_dump() | {"cache_folder": str(tmp_path / "cache")}
    config = parse({"publish": settings, "embedding": embedded, "storage": stores})
    name = f"lancedb {settings['address']} documents"
    lock = f".lock-publish.{sha256(name.encode()).hexdigest()[:32]}"
    assert is_lock(lock)

    def other() -> None:
        with pytest.raises(PipelineError, match=r"^publish\.collection: documents is in use by"):
            pipelines.publish(config)

    with held(place / lock, "publish"), ThreadPoolExecutor() as pool:
        pool.submit(other).result()
    assert pipelines.publish(config).rows == 3
    assert not (place / lock).exists()


def test_a_folder_of_a_job_killed_in_its_first_commit_is_no_table(table, tmp_path, monkeypatch):
    table.write(rows_of(3))
    with STORES["lancedb"](tmp_path) as served:
        for name in ("documents", "documents_01234567"):
            left = tmp_path / "lance" / f"{name}.lance" / "data" / "left.lance"
            left.parent.mkdir(parents=True)
            left.write_bytes(b"half")
        assert publish(served, table, monkeypatch).upserted == 3
        same(served, table)


def test_a_collection_that_serves_again_is_the_newest(postgres, table, monkeypatch):
    table.write(rows_of(10))
    first = publish(postgres, table, monkeypatch)
    second = publish(postgres, table, monkeypatch, columns=["topic", "year"])
    assert publish(postgres, table, monkeypatch).collection == first.collection
    publish(postgres, table, monkeypatch, columns=["text"], filters=[], keep_old=1)
    kind, target = kind_and_target(postgres)
    with opened(kind, target) as store:
        kept = store.collections()
    assert first.collection in kept
    assert second.collection not in kept


def test_rows_of_a_killed_job_may_be_behind_its_last_part(table, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "TASK_ROWS", 1)
    table.write(rows_of(40), part_rows=10)
    with STORES["lancedb"](tmp_path) as served:
        made = publish(served, table, monkeypatch)
        kind, target = kind_and_target(served)
        with opened(kind, target) as store:
            state = parse_state(store.collections()[made.collection], target.collection)
            store.write_state(made.collection, replace(state, is_complete=False).text())
        assert publish(served, table, monkeypatch).upserted == 40
        same(served, table)


class Robbed:
    """A store from which another job drops the collection after the last row."""

    def __init__(self, store) -> None:
        self._store = store

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def write_state(self, name: str, state: str) -> None:
        self._store.drop(name)


def test_a_collection_that_another_job_has_dropped_is_told(table, tmp_path, monkeypatch):
    table.write(rows_of(3))
    kind = KINDS.load("lancedb")
    robbed = replace(kind, open=lambda target: Robbed(kind.open(target)))
    with STORES["lancedb"](tmp_path) as served:
        work = replace(job.PublishJob.of(config_of(served, table)), kind=robbed)
        told = r"^publishing: documents_01234567 is gone\. Another job may have dropped it\. Run"
        with pytest.raises(PipelineError, match=told):
            work.run(work.plan(), lambda: None)


def test_one_job_at_a_time_writes_a_collection(table, tmp_path):
    table.write(rows_of(3))
    settings = {"store": "lancedb", "address": str(tmp_path / "lance")}
    config = parse({"publish": settings, "embedding": {"output": str(table.folder)}})
    name = f"lancedb {settings['address']} documents"
    lock = f".embedded.lock-publish.{sha256(name.encode()).hexdigest()[:32]}"

    def other() -> None:
        with pytest.raises(
            PipelineError, match=r"^publish\.collection: documents is in use by `publish`"
        ):
            pipelines.publish(config)

    with held(tmp_path / lock, "publish"), ThreadPoolExecutor() as pool:
        pool.submit(other).result()
        assert pipelines.publish(config.changed("publish", collection="others")).rows == 3
    assert pipelines.publish(config).rows == 3
    assert not [path for path in tmp_path.iterdir() if ".lock" in path.name]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"columns": ["nope"]},
            r"^publish\.columns: .* no column `nope`.* text, topic, year, score",
        ),
        ({"filters": ["id"]}, r"^publish\.filters: .* no column `id` to store"),
        ({"int8": "keep"}, r"^publish\.int8: .* no int8 vectors\. Set it to restore"),
        (
            {"address": None},
            r"^publish\.address: it does not say where lancedb is\. Set it to a URL",
        ),
        ({"address": "db://mine"}, r"^publish\.address: db://mine is LanceDB Cloud"),
        ({"address": "/proc/no"}, r"^publish\.address: /proc/no cannot be read or written"),
    ],
)
def test_refusals_name_the_setting(changes, told, table, tmp_path):
    table.write(rows_of(3))
    settings = {"store": "lancedb", "address": str(tmp_path / "lance"), **changes}
    config = parse({"publish": settings, "embedding": {"output": str(table.folder)}})
    with pytest.raises(InputError, match=told):
        pipelines.publish(config)


def test_a_table_without_keys_is_refused(table, tmp_path):
    table.write(rows_of(3))
    manifest = table.folder / "_manifest.json"
    manifest.write_text(manifest.read_text().replace('"key_column": "id"', '"key_column": null'))
    settings = {"store": "lancedb", "address": str(tmp_path / "lance")}
    config = parse({"publish": settings, "embedding": {"output": str(table.folder)}})
    with pytest.raises(InputError, match=r"^embedding\.key_column: .* has no keys, by which"):
        pipelines.publish(config)


def test_a_column_without_a_type_in_stores_is_refused(table, tmp_path):
    table.write([{"id": 1, "text": "a", "place": {"x": 1}}])
    settings = {"store": "lancedb", "address": str(tmp_path / "lance")}
    config = parse({"publish": settings, "embedding": {"output": str(table.folder)}})
    with pytest.raises(InputError, match=r"^publish\.columns: .* `place`, which holds struct"):
        pipelines.publish(config)
    assert pipelines.publish(config.changed("publish", columns=("text",))).rows == 1
