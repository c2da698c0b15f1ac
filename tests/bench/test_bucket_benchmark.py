"""The store of the benchmark is slow, and has the lanes."""

import time

import pytest

from pipelines.files.locations import RemotePath
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader
from pipelines.settings.spark import StorageSettings
from pipelines_bench import bucket, slow_store
from pipelines_bench.bucket import AS_IT_IS, Places, paced_steps, write_random_lanes

SECONDS, MEGABYTES = 0.05, 4.0


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bucket") / "lanes"
    return folder, write_random_lanes(folder, lanes=2, rows=40)


@pytest.fixture(params=["a namespace", "the server's own pace"])
def remote(lanes, request, monkeypatch):
    if request.param == "the server's own pace":
        monkeypatch.setattr(slow_store, "_can_make_namespaces", lambda: False)
    elif not slow_store._can_make_namespaces():
        pytest.skip("this user may not make network namespaces")
    folder, _ = lanes
    with slow_store.slow_store(folder.parent, SECONDS, MEGABYTES) as (endpoint, in_namespace):
        assert in_namespace == (request.param == "a namespace")
        options = StorageSettings(
            s3_endpoint=endpoint, s3_region="us-east-1", anonymous=True, retry_seconds=20
        )
        yield RemotePath.parse(f"s3://{slow_store.BUCKET}/lanes", options)


def test_it_waits_and_sends_no_faster_than_it_should(lanes, remote):
    folder, _ = lanes
    path = next(folder.glob("lane-000/*.arrow"))
    there = remote / "lane-000" / path.name
    there.stat()
    began = time.monotonic()
    there.stat()
    assert time.monotonic() - began >= SECONDS
    began = time.monotonic()
    assert there.read_bytes() == path.read_bytes()
    size = path.stat().st_size
    # What the kernel lets pass at once is not slowed.
    assert time.monotonic() - began >= SECONDS + (size - 600_000) / (MEGABYTES * 1e6)
    assert not (remote / "lane-000" / "none").exists()


def test_both_places_are_measured(tmp_path, lanes, remote, monkeypatch):
    folder, manifest = lanes
    first, last = GranuleAddress(lane=0, row=0), GranuleAddress(lane=1, row=39)
    near, far = (LaneReader(place, manifest) for place in (folder, remote))
    assert [near.batch(one) for one in (first, last)] == [far.batch(one) for one in (first, last)]
    monkeypatch.setattr(bucket, "PACED_SECONDS", 0.2)
    monkeypatch.setattr(bucket, "GRANULES_PER_PACED_STEP", 2)
    (taken,) = Places(manifest, folder, remote, tmp_path).rounds(paced_steps(1000, 64), AS_IT_IS, 1)
    # Index, length of the part, and a block of it, one after the other.
    assert taken.far.start_seconds >= 3 * SECONDS
    assert min(taken.near.seconds, taken.far.seconds) >= 0.2
    assert not list(tmp_path.iterdir())
