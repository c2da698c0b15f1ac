"""A store that fails in the middle: nothing half-written is read, and an error says what it was."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from object_stores import Bucket
from store_proxies import BUSY, CUT, EXPIRED, LOST, PASS, Traffic, store_proxy

from pipelines.errors import InputError, PipelineError
from pipelines.files import folders, locks, storage, versions
from pipelines.files.locations import RemotePath
from pipelines.spark.errors import file_failures

# Of more than one part of an upload, each of 10 MB at least.
LARGE = b"0123456789abcdef" * (1 << 20)
AWAY_SECONDS = 1.5


@pytest.fixture
def traffic(s3_server) -> Iterator[Traffic]:
    with store_proxy(s3_server.s3_endpoint) as traffic:
        yield traffic


@pytest.fixture
def root(s3_bucket, traffic) -> RemotePath:
    """A bucket behind a proxy."""
    changed = {"s3_endpoint": traffic.endpoint, "retry_seconds": 30.0}
    return Bucket(s3_bucket.address, s3_bucket.options.model_copy(update=changed)).root


def write_model(root: RemotePath, content: bytes) -> None:
    with storage.built_folder(root / "model") as made:
        (made / "weights").write_bytes(content)
        (made / "zzz").write_bytes(b"last")


def model(root: RemotePath) -> bytes:
    return (versions.current(root / "model") / "weights").read_bytes()


def test_a_store_that_is_busy_for_a_while_costs_time_alone(root, traffic):
    back = time.monotonic() + AWAY_SECONDS
    traffic.decide = lambda _method, _path: BUSY if time.monotonic() < back else PASS
    with folders.work_folder("run.folder", root / "run", "train"):
        write_model(root, b"new")
    assert model(root) == b"new"
    assert traffic.struck
    assert list((root / "run").iterdir()) == []


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_connection_that_is_cut_in_a_put_is_made_again(root, traffic, method):
    def decide(asked: str, path: str) -> str:
        return CUT if asked == method and "/weights" in path and not traffic.struck else PASS

    traffic.decide = decide
    write_model(root, LARGE)
    assert traffic.struck == 1
    assert model(root) == LARGE


@pytest.mark.parametrize(
    ("stage", "fault"), [("partNumber=2", BUSY), ("partNumber=2", EXPIRED), ("uploadId", EXPIRED)]
)
def test_an_upload_that_is_half_done_is_never_read(root, traffic, stage, fault):
    write_model(root, b"before")
    impatient = Bucket(str(root), root.store.options.model_copy(update={"retry_seconds": 0.0})).root

    def decide(method: str, path: str) -> str:
        return fault if method in ("PUT", "POST") and stage in path else PASS

    traffic.decide = decide
    with pytest.raises(OSError, match=r"SlowDown|SLOW_DOWN|ExpiredToken|EXPIRED|Later|expired"):
        write_model(impatient, LARGE)
    with pytest.raises(OSError, match="weights"), storage.built_file(impatient / "weights") as made:
        made.write_bytes(LARGE)
    assert traffic.struck
    traffic.decide = lambda _method, _path: PASS
    assert model(root) == b"before"
    assert not (root / "weights").exists()
    kept = [path.parent.name for path in (root / "model").rglob("weights")]
    assert kept == [versions.current(root / "model").name]


def test_credentials_that_have_ended_are_told_at_once(root, traffic):
    traffic.decide = lambda _method, _path: EXPIRED
    began = time.monotonic()
    said = r"^run\.folder: the job cannot write.* s3://.*/run .*ExpiredToken.*or credentials;"
    with pytest.raises(InputError, match=said), folders.work_folder("run.folder", root / "run", ""):
        pytest.fail("the job began")
    said = r"^writing failed: .*expired.*; renew the store's credentials, or let them"
    with pytest.raises(PipelineError, match=f"(?i){said}"), file_failures("writing"):
        versions.put_bytes(root / "file", b"content")
    assert time.monotonic() - began < root.store.options.retry_seconds


def test_a_lock_is_kept_over_a_while_without_the_store(root, traffic, monkeypatch):
    monkeypatch.setattr("pipelines.files.locks.StoreLockFiles.beat_seconds", 0.1)
    with locks.held(root / "run" / ".lock", "train") as lock:
        traffic.decide = lambda _method, _path: EXPIRED
        deadline = time.monotonic() + 120
        while traffic.struck < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert traffic.struck >= 3
        traffic.decide = lambda _method, _path: PASS
        lock.check()
    assert list((root / "run").iterdir()) == []


def test_a_file_is_gone_though_the_answer_was_lost(root, traffic):
    versions.put_bytes(root / "file", b"content")

    def decide(method: str, _path: str) -> str:
        # As often as the SDK asks again by itself.
        faults = dict(enumerate((LOST, BUSY, BUSY, BUSY)))
        return faults.get(traffic.struck, PASS) if method == "DELETE" else PASS

    traffic.decide = decide
    (root / "file").unlink()
    assert traffic.struck == 4
    assert not (root / "file").exists()
    with pytest.raises(FileNotFoundError):
        (root / "file").unlink()


def test_a_lock_that_could_not_be_removed_is_free_for_who_comes_next(root, traffic, caplog):
    path = root / "run" / ".lock"
    with pytest.raises(PipelineError, match="the cause"), locks.held(path, "train"):
        traffic.decide = lambda _method, _path: EXPIRED
        raise PipelineError("the cause")
    assert f"this job cannot remove its lock {path}: " in caplog.text
    traffic.decide = lambda _method, _path: PASS
    with locks.held(path, "train") as lock:
        lock.check()
    assert not path.exists()
