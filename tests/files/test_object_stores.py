"""Folders and locks in a real store."""

import subprocess
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pytest
from object_stores import Bucket, new_bucket

from pipelines.corpus.kept_units import (
    KeptSource,
    find_generations,
    write_generation,
)
from pipelines.errors import InputError, PipelineError
from pipelines.files import conditional, folders, locks, storage, versions
from pipelines.files import locks as lock_files
from pipelines.files.locations import RemotePath

HOLDS = """
import sys, time
from pipelines.files import locks
from pipelines.files.locations import RemotePath
from pipelines.settings import StorageSettings

options = StorageSettings.model_validate_json(sys.argv[2])
with locks.held(RemotePath.parse(sys.argv[1], options) / ".lock", "train"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(params=["s3", "azure"])
def lockable(request) -> Bucket:
    """A bucket on each server that has conditional puts; Google's emulator sends no ETag."""
    return new_bucket(request.param, request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def holder(lockable):
    """Another process that holds the lock of the folder `run`."""
    command = [sys.executable, "-c", HOLDS, f"{lockable.address}/run"]
    process = subprocess.Popen(
        [*command, lockable.options.model_dump_json()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_of_a_bucket_is_whole_or_the_one_before(any_bucket):
    folder = any_bucket.root / "run" / "model"
    for content in ("first", "second"):
        with storage.built_folder(folder) as made:
            (made / "weights").write_text(content)
        assert (versions.current(folder) / "weights").read_text() == content
    assert not (folder / "weights").exists()
    storage.remove_folder(folder)
    assert not folder.exists()


def test_the_version_before_of_a_folder_can_be_forgotten(any_bucket):
    folder = any_bucket.root / "prepared" / "corpus"
    versions.forget_earlier(folder)
    for content in ("deleted", "kept"):
        with storage.built_folder(folder) as made:
            (made / "texts").write_text(content)
    contents = [path.read_text() for path in folder.rglob("texts")]
    assert sorted(contents) == ["deleted", "kept"]
    versions.forget_earlier(versions.current(folder))
    assert [path.read_text() for path in folder.rglob("texts")] == ["kept"]
    assert (versions.current(folder) / "texts").read_text() == "kept"


def test_generations_of_units_in_a_bucket(any_bucket):
    units = any_bucket.root / "prepared" / "units"
    totals = pa.table({"source": [5, 6], "written": [1, 2]})
    kept = {"a": KeptSource("stamp", 5), "b": KeptSource(None, 6)}
    for number in ("1", "2"):
        with storage.new_folder(units / number) as aside:
            write_generation(aside, "key", kept, totals)
    # What a job leaves that is killed before it says which version is the current one.
    write_generation(units / "3" / "version", "key", kept, totals)
    newest, oldest = find_generations(units)
    assert (newest.number, oldest.number, newest.sources) == (2, 1, kept)
    assert newest.number_of_rows == 3
    assert newest.totals_of([6])["written"].to_pylist() == [2]
    storage.remove_folder(oldest.place)
    assert [found.number for found in find_generations(units)] == [2]


def test_a_large_file_comes_back_as_it_was(any_bucket, tmp_path):
    # More than one part of an upload.
    content = b"0123456789abcdef" * (1 << 20)
    with storage.built_file(any_bucket.root / "large") as made:
        made.write_bytes(content)
    assert (any_bucket.root / "large").stat().st_size == len(content)
    versions.get_file(any_bucket.root / "large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content


def test_a_file_is_made_once_and_changed_by_who_has_read_it(lockable):
    path = lockable.root / "lock"
    assert conditional.read(path) is None
    assert conditional.create(path, b"first")
    assert not conditional.create(path, b"second")
    found = conditional.read(path)
    assert found.content == b"first"
    assert conditional.replace(found, b"third")
    assert not conditional.replace(found, b"fourth")
    conditional.delete(path)
    assert not conditional.replace(found, b"fifth")
    conditional.delete(path)


class TestLocks:
    def test_one_process_holds_a_lock(self, lockable, holder):
        path = lockable.root / "run" / ".lock"
        with (
            pytest.raises(locks.LockedError, match=f"`train`, process {holder.pid} on"),
            locks.held(path, "evaluate"),
        ):
            pass
        holder.kill()
        holder.wait()
        # Its process is gone from this machine, so nobody waits for a sign of life.
        with locks.held(path, "evaluate") as lock:
            lock.check()
        assert not path.exists()

    def test_a_holder_elsewhere_is_known_by_its_changes(self, lockable, monkeypatch):
        path = lockable.root / "run" / ".lock"
        elsewhere = replace(locks.Holder.here("train"), owner="0123456789ab-1-1")
        assert conditional.create(path, locks._line(elsewhere))
        monkeypatch.setattr(locks, "SILENT_SECONDS", 2.0)
        with locks.held(path, "evaluate") as lock:
            lock.check()

    def test_who_lost_the_lock_is_told(self, lockable):
        path = lockable.root / "run" / ".lock"
        taker = locks.Holder.here("other")
        with pytest.raises(PipelineError, match="took over or removed"), locks.held(path, "train"):
            versions.put_bytes(path, locks._line(taker))
        assert conditional.read(path).content == locks._line(taker)

    def test_a_holder_shows_that_it_lives(self, lockable, monkeypatch):
        monkeypatch.setattr(lock_files.StoreLockFiles, "beat_seconds", 0.1)
        path = lockable.root / "run" / ".lock"
        with locks.held(path, "train"):
            first = conditional.read(path).content
            deadline = time.monotonic() + 60
            while conditional.read(path).content == first:
                assert time.monotonic() < deadline
        assert not path.exists()

    def test_readers_share_a_lock(self, lockable):
        path = lockable.root / "prepared" / ".lock"
        with locks.held(path, "train", shared=True):
            files = lock_files.files_for(path)
            (own,) = files.beside(path)
            assert files.content(own) is not None
        assert files.beside(path) == []

    def test_a_store_without_conditions_is_told_of(self, caplog):
        path = RemotePath.parse("memory://unlocked/run") / ".lock"
        with locks.held(path, "train") as lock:
            assert lock is None
        assert "has no lock (memory has no conditional writes)" in caplog.text


class TestFolders:
    def test_a_job_works_in_a_bucket(self, lockable):
        folder = lockable.root / "run"
        with folders.work_folder("run.folder", folder, "train"):
            assert [path.name for path in folder.iterdir()] == [locks.LOCK_FILE]
        assert [path.name for path in folder.iterdir()] == []

    def test_without_locks_it_works_there_too_and_says_so(self, google_server, caplog):
        folder = new_bucket("google", google_server).root / "run"
        with folders.work_folder("run.folder", folder, "train"):
            assert [path.name for path in folder.iterdir()] == []
        assert f"{folder} has no lock (" in caplog.text
        assert [path.name for path in folder.iterdir()] == []

    def test_a_bucket_that_is_not_there_is_told_of_at_once(self, s3_bucket):
        missing = RemotePath.parse("s3://no-such-bucket-at-all/run", s3_bucket.options)
        began = time.monotonic()
        with pytest.raises(
            InputError,
            match=r"^run\.folder: the job cannot write.* s3://no-such-bucket-at-all/run ",
        ):
            folders.check_place("run.folder", missing)
        with (
            pytest.raises(
                InputError,
                match=r"^run\.folder: .* s3://no-such-bucket-at-all/run \(.*: NoSuchBucket: The",
            ) as refused,
            folders.work_folder("run.folder", missing, "train"),
        ):
            pass
        assert "<" not in str(refused.value)
        assert time.monotonic() - began < s3_bucket.options.retry_seconds

    def test_a_server_that_is_not_there_is_asked_for_a_while(self, s3_server):
        options = s3_server.model_copy(
            update={"s3_endpoint": "http://127.0.0.1:9", "retry_seconds": 1.0}
        )
        missing = RemotePath.parse("s3://bucket/run", options)
        with pytest.raises(InputError, match=r"^run\.folder: the job cannot write, read and list "):
            folders.check_place("run.folder", missing)

    def test_a_wrong_endpoint_is_told_of_before_the_store_has_been_waited_for(self, s3_server):
        wrong = {"s3_endpoint": "http://127.0.0.1:9", "timeout_seconds": 2.0}
        options = s3_server.model_copy(update={**wrong, "retry_seconds": 300.0})
        missing = RemotePath.parse("s3://bucket-elsewhere/run", options)
        began = time.monotonic()
        with (
            pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/.*\. Correct the address, st"),
            folders.work_folder("run.folder", missing, "train"),
        ):
            pass
        assert time.monotonic() - began < 60.0
