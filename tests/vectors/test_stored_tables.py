"""Tables of vectors in an object store: the same as on a file system, and whole at any moment."""

import csv
import logging
import re

import embedding_rounds
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_rounds import embed_here, write_lake

from pipelines.cli import main
from pipelines.corpus.unit_rows import hash_of
from pipelines.errors import InputError
from pipelines.files import storage, versions
from pipelines.files.locations import RemotePath, arrow_source
from pipelines.settings.load import parse
from pipelines.vectors.changes import ChangeLog, logs_after, read_changes, read_log
from pipelines.vectors.embed import EmbeddingJob, embed_table
from pipelines.vectors.embedding import vectors_of
from pipelines.vectors.index import build_index, has_index, index_folder, search_index
from pipelines.vectors.merge import read_all_columns
from pipelines.vectors.parts import partition_columns
from pipelines.vectors.plan import part_file, read_version
from pipelines.vectors.row_deletion import DeletedRows, delete_from_table, has_rows_by
from pipelines.vectors.search import search_words
from pipelines.vectors.store import open_table, rows_at
from pipelines.vectors.table_job import MANIFEST_FILE

FIRST = {"a": [(1, "one"), (2, "two")], "b": [(3, "three"), (4, None)]}
LATER = {"a": FIRST["a"], "b": [(3, "3"), (4, None), (5, "new")]}


@pytest.fixture
def place(s3_bucket) -> RemotePath:
    """Where the table is."""
    return s3_bucket.root / "vectors"


@pytest.fixture
def write(s3_bucket, tmp_path):
    """Writes Parquet files of rows into the bucket; those that are as they were stay."""

    def written(files) -> None:
        write_lake(tmp_path / "lake", files)
        for name in files:
            file = tmp_path / "lake" / f"{name}.parquet"
            target = s3_bucket.root / "lake" / file.name
            if not target.exists() or target.read_bytes() != file.read_bytes():
                versions.put_file(file, target)

    written(FIRST)
    return written


@pytest.fixture
def stored(s3_bucket, small_model, tmp_path):
    """Makes the configuration of a job in the bucket."""

    def configured(**settings):
        known = {
            "model": str(small_model),
            "inputs": [f"{s3_bucket.address}/lake"],
            "output": f"{s3_bucket.address}/vectors",
            "precision": "fp32",
            "part_rows": 2,
            "key_column": "id",
        }
        stores = s3_bucket.options.model_dump() | {"cache_folder": str(tmp_path / "cache")}
        return parse({"embedding": known | settings, "storage": stores})

    return configured


def changes_in(log: ChangeLog) -> dict[int, str]:
    changes = [change for batch in read_changes(log) for change in batch.to_pylist()]
    return {change["key"]: change["change"] for change in changes}


def rows_of(table) -> pa.Table:
    read = [pq.read_table(arrow_source(file.path)) for file in table.files]
    return pa.concat_tables(read).sort_by("id")


def test_an_update_keeps_what_is_as_it_was(place, write, stored) -> None:
    assert not EmbeddingJob.of(stored()).is_up_to_date()
    assert embed_here(stored()) == 4
    assert EmbeddingJob.of(stored()).is_up_to_date()
    before = open_table(place)
    write(LATER)
    assert not EmbeddingJob.of(stored()).is_up_to_date()
    assert embed_here(stored()) == 2
    table = open_table(place)
    assert table.folder != before.folder
    # Parts that stay are copied by the store, and are known again.
    parts = {file.path.name: file.part for file in before.files}
    assert sum(parts.get(file.path.name) == file.part for file in table.files) == 1
    assert rows_of(table)["text"].to_pylist() == ["one", "two", "3", None, "new"]
    first, kept = (rows_of(one)["embedding"].to_pylist()[:2] for one in (before, table))
    assert first == kept
    (log,) = logs_after(place, 0)
    assert changes_in(log) == {3: "upsert", 5: "upsert"}
    assert log.path.parent.parent == table.folder
    # Who reads the table of before goes on.
    assert rows_of(before).num_rows == 4


def test_a_killed_job_leaves_the_table_of_before_and_goes_on(
    place, write, stored, monkeypatch
) -> None:
    job = stored(part_rows=1)
    embed_here(job)
    before = versions.current(place)
    # Of a job that was killed before it had a plan.
    versions.put_bytes(versions.begin(place) / "_kept" / "part.parquet", b"nothing")
    write(LATER)
    made = embedding_rounds.embed_parts

    def dies(parts, **arguments):
        # Of five parts, the first two are copies.
        yield from made(parts[:3], **arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(embedding_rounds, "embed_parts", dies)
        embed_here(job)
    assert versions.current(place) == before
    assert open_table(place).rows == 4
    (begun,) = versions.begun(place)
    parts = read_version(begun, job.storage).plan.parts
    whole = part_file(begun, parts[2]).stat()
    # An upload that broke off in a store that shows it all the same.
    content = part_file(begun, parts[2]).read_bytes()
    versions.put_bytes(part_file(begun, parts[3]), content[:-9])
    assert embed_here(job) == 1
    assert versions.current(place) == begun
    assert part_file(begun, parts[2]).stat() == whole
    assert rows_of(open_table(place))["id"].to_pylist() == [1, 2, 3, 4, 5]


def test_parts_of_an_unfinished_table_are_taken_over(place, write, stored) -> None:
    embed_here(stored())
    begun = versions.current(place)
    (begun / MANIFEST_FILE).unlink()
    (place / versions.POINTER).unlink()
    with pytest.raises(InputError, match=r"^embedding.output: .*/vectors is not finished"):
        open_table(place)
    write(FIRST | {"c": [(7, "seven")]})
    assert embed_here(stored()) == 1
    assert open_table(place).rows == 5
    assert not begun.exists()


def test_folders_that_are_in_use_are_refused(place, write, stored, s3_bucket) -> None:
    address = s3_bucket.address
    cases = [
        ({"output": f"{address}/lake/vectors"}, "is within the inputs. Name a folder beside"),
        ({"output": f"s3a:{address.removeprefix('s3:')}/lake/vectors"}, "is within the inputs"),
        ({"output": address}, "holds the input s3://.*/lake. Name a folder beside it"),
        ({"inputs": [f"{address}/*/*.parquet"]}, "is within the inputs. Name a folder beside"),
        ({"inputs": [f"{address}/lake/a.parquet"], "output": f"{address}/lake"}, "holds the input"),
    ]
    for settings, message in cases:
        with pytest.raises(InputError, match=rf"^embedding.output: .* ?{message}"):
            EmbeddingJob.of(stored(**settings)).check()
    versions.put_bytes(place / "mine.parquet", b"x")
    with pytest.raises(InputError, match=r"^embedding.output: .*/vectors holds other files"):
        EmbeddingJob.of(stored()).check()
    with pytest.raises(InputError, match=r"^embedding.inputs: there is no file or folder `s3://"):
        EmbeddingJob.of(stored(inputs=[f"{address}/none"])).check()
    with pytest.raises(InputError, match=r"^embedding.output: there is no folder s3://.*/none"):
        open_table(s3_bucket.root / "none")


def test_folders_of_partitions_are_columns(s3_bucket, write, stored, place) -> None:
    for name in ("a", "b"):
        target = s3_bucket.root / "parted" / f"lang={name}" / "x.parquet"
        versions.copy_file(s3_bucket.root / "lake" / f"{name}.parquet", target)
    given = f"{s3_bucket.address}/parted"
    assert embed_here(stored(inputs=[given])) == 4
    assert rows_of(open_table(place))["lang"].to_pylist() == ["a", "a", "b", "b"]
    found = partition_columns([f"{given}/*/*.parquet"], s3_bucket.options)
    assert found == partition_columns([given], s3_bucket.options)
    assert {constant.name for constants in found.values() for constant in constants} == {"lang"}


def test_a_copy_that_is_not_what_was_written_is_not_searched(place, write, stored) -> None:
    embed_here(stored())
    file = open_table(place).files[0].path
    content = bytearray(file.read_bytes())
    # The first byte behind the name of the format is in a page.
    content[60] ^= 1
    versions.put_bytes(file, bytes(content))
    with pytest.raises(OSError, match=r"(?i)checksum|corrupt|thrift|page"):
        rows_at(open_table(place), [0], ["id", "text"])


def assert_same_table(found: str, expected: str) -> None:
    """What is found is the same, but for the last digit of scores, summed in another order."""
    number = re.compile(r"\d\.\d{4}")
    assert number.sub("", found) == number.sub("", expected)
    scores, others = ([float(one) for one in number.findall(text)] for text in (found, expected))
    np.testing.assert_allclose(scores, others, atol=2e-4)


def test_embed_and_search_as_on_a_file_system(
    spark, place, stored, lines, s3_bucket, small_model, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rows = list(enumerate(lines[:60]))
    with (tmp_path / "lines.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])
    versions.put_file(tmp_path / "lines.csv", s3_bucket.root / "lines.csv")
    write_lake(tmp_path / "same", {"lines": rows})
    here = {"inputs": [str(tmp_path / "same")], "output": str(tmp_path / "vectors")}
    assert embed_here(stored(**here, part_rows=20)) == 60

    def told(command: str, output: object, *more: str) -> str:
        keys = {
            "embedding.model": small_model,
            "embedding.output": output,
            "storage.s3_endpoint": s3_bucket.options.s3_endpoint,
            "storage.cache_folder": tmp_path / "cache",
        }
        settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        assert main([command, *settings, *more]) == 0
        return capsys.readouterr().out

    input_ = {"inputs": f"[{s3_bucket.address}/lines.csv]", "format": "csv", "key_column": "id"}
    asked = {**input_, "part_rows": 20, "precision": "fp32"}
    more = [word for key, value in asked.items() for word in ("--set", f"embedding.{key}={value}")]
    said = told("embed", place, *more)
    assert said.splitlines()[-1] == f"table   {versions.current(place)}"
    queries = ["--query", lines[17], "--query", lines[40], "-k", "3"]
    found = told("search", place, *queries)
    assert lines[17][:20] in found
    assert_same_table(found, told("search", tmp_path / "vectors", *queries))
    indexed = told("search", place, *queries, "--index")
    assert indexed.count(lines[17][:20]) == found.count(lines[17][:20])
    hybrid = told("search", place, *queries, "--hybrid")
    assert hybrid.count(lines[17][:20]) == found.count(lines[17][:20])
    assert_same_table(told("search", place, *queries, "--hybrid", "--index"), hybrid)
    ours, theirs = (
        vectors_of(rows_of(open_table(where, stores=s3_bucket.options))["embedding"])
        for where in (str(place), tmp_path / "vectors")
    )
    # CSV holds strings, by which its rows are sorted here.
    order = sorted(range(60), key=str)
    np.testing.assert_allclose(ours, theirs[order], atol=1e-5)
    # What a search has read is on this machine, the index too.
    copies = {path.suffix for path in (tmp_path / "cache").rglob("part-*")}
    assert copies == {".parquet", ".usearch"}
    table = open_table(place)
    index = versions.current(index_folder(table))
    versions.put_bytes(index / f"{table.files[0].path.stem}.usearch", b"no index")
    with pytest.raises(OSError, match="differs from the original"):
        search_index(table, np.zeros((1, table.dimensions)), 1)


def test_a_table_that_grows_keeps_vectors_and_indexes(
    spark, place, stored, write, lines, caplog
) -> None:
    caplog.set_level(logging.INFO, "pipelines")
    write({"a": list(enumerate(lines[:40])), "b": list(enumerate(lines[40:80], 40))})
    config = stored(part_rows=20)
    embed_here(config)
    build_index(spark, open_table(place))
    rows = list(reversed([*enumerate(lines[40:80], 40)]))
    write({"a": list(enumerate(lines[:40])), "b": [*rows[1:], (777, "A new one.")]})
    summary = embed_table(spark, config)
    assert (summary.rows, summary.embedded) == (80, 1)
    assert summary.folder == str(versions.current(place))
    assert "79 unchanged, 0 changed, 1 new, 1 gone; 2 of 4 parts stay as they are" in caplog.text
    table = open_table(place)
    assert not has_index(table)
    build_index(spark, table)
    assert "index: 2 of 4 files built" in caplog.text
    assert has_index(table)
    queries = vectors_of(rows_of(table)["embedding"])[::20]
    for session in (None, spark):
        newest = search_words(table, ["a new one"], 1, session).documents
        assert rows_at(table, newest, ["id"])["id"].to_pylist() == [777]
        assert (search_index(table, queries, 1, session).scores > 0.99).all()


def test_deleted_rows_are_in_no_version(spark, place, stored, write, s3_bucket) -> None:
    embed_here(stored())
    deleted = DeletedRows("text", (hash_of("two"), hash_of("new")))
    assert not has_rows_by(stored(), "owner")
    assert has_rows_by(stored(), deleted.column)
    embed_here(stored(dimensions=8))
    assert delete_from_table(spark, stored(), deleted) == 1
    # Who follows has to know, and no other log names the key.
    logs = logs_after(place, 0)
    assert [changes_in(log) for log in logs] == [dict.fromkeys([1, 3, 4], "upsert"), {2: "delete"}]
    assert changes_in(read_log(versions.current(place), 0)) == dict.fromkeys([1, 3, 4], "upsert")
    assert rows_of(open_table(place))["text"].to_pylist() == ["one", "three", None]
    (whole,) = (path for path in place.iterdir() if versions.is_version(path.name))
    manifest = storage.read_json(whole / MANIFEST_FILE)
    assert [manifest[name] for name in ("rows", "texts", "left_out")] == [3, 2, 1]
    assert EmbeddingJob.of(stored(dimensions=8)).is_up_to_date()
    # The input still has them, and more of them.
    write(LATER)
    assert embed_here(stored(dimensions=8)) == 1
    assert rows_of(open_table(place))["text"].to_pylist() == ["one", "3", None]
    # Who read the table of before goes on until the next one is there.
    assert rows_of(open_table(whole)).num_rows == 3
    assert embed_here(stored(overwrite=True)) == 3
    assert rows_of(open_table(place))["text"].to_pylist() == ["one", "3", None]
    assert not whole.exists()
    assert versions.begun(place) == []


def test_a_merge_has_the_columns_of_all_files(spark, s3_bucket) -> None:
    files = {"a": {"id": [1], "tag": pa.array(["x"]).dictionary_encode()}, "b": {"id": [2]}}
    for name, columns in files.items():
        with storage.built_file(s3_bucket.root / "mixed" / f"{name}.parquet") as made:
            pq.write_table(pa.table(columns), made)
    frame = read_all_columns(spark, s3_bucket.root / "mixed")
    assert sorted(map(tuple, frame.collect())) == [(1, "x"), (2, None)]
