"""Lanes in an object store are read as those on a disk are, and no more of them than is needed."""

from __future__ import annotations

import multiprocessing
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from lanes_factory import damage_lane, write_small_lanes
from store_proxies import BUSY, CUT, PASS, Traffic, store_proxy
from waiting import await_threads_gone

from pipelines.errors import InputError, PipelineError
from pipelines.files import storage, versions
from pipelines.files.block_cache import COUNT_FILE
from pipelines.files.locations import RemotePath
from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import BatchPlan, GranuleAddress, share
from pipelines.lanes.reader import CACHE_FOLDER, Fetching, LaneReader
from pipelines.settings.spark import StorageSettings

SMALL_BLOCKS = Fetching(block_bytes=300)
MUCH = 10**9


def put(local: Path, folder: RemotePath) -> RemotePath:
    """Puts lanes into a store; gives the version."""
    with storage.built_folder(folder) as made:
        storage.copy_folder(local, made)
    version = versions.current(folder)
    assert isinstance(version, RemotePath)
    return version


def messages(reader: LaneReader, manifest: LaneManifest) -> list[bytes]:
    """All granules, read ahead."""
    addresses = [
        GranuleAddress(lane=lane, row=row)
        for row in range(manifest.rows)
        for lane in range(manifest.lanes)
    ]
    steps = reader.ahead((address, (address,)) for address in addresses)
    return [reader.message(address).to_pybytes() for address, _ in steps]


def with_options(folder: RemotePath, **options) -> RemotePath:
    """The same folder, reached in another way."""
    changed = folder.store.options.model_copy(update=options)
    store = replace(folder.store, options=changed)
    place = None if folder.place is None else replace(folder.place, store=store)
    return replace(folder, store=store, place=place)


def cached(folder: Path) -> list[Path]:
    """The blocks on the disk."""
    files = (folder / CACHE_FOLDER).rglob("*")
    return sorted(path for path in files if path.is_file() and path.name != COUNT_FILE)


@pytest.fixture
def local(tmp_path) -> Path:
    return tmp_path / "lanes"


@pytest.fixture
def manifest(local) -> LaneManifest:
    return write_small_lanes(local)


@pytest.fixture
def remote(tmp_path, local, manifest) -> RemotePath:
    """The lanes in the memory of this process."""
    options = StorageSettings(cache_folder=str(tmp_path / "cache"), retry_seconds=0)
    return put(local, RemotePath.parse(f"memory://{tmp_path.name}/lanes", options))


@pytest.fixture
def traffic(s3_server) -> Iterator[Traffic]:
    with store_proxy(s3_server.s3_endpoint) as traffic:
        yield traffic


@pytest.fixture
def in_s3(s3_bucket, tmp_path, local, manifest, traffic) -> RemotePath:
    """The lanes on a server, behind a proxy."""
    version = put(local, s3_bucket.root / "prepared" / "lanes")
    traffic.reads.clear()
    return with_options(version, s3_endpoint=traffic.endpoint, cache_folder=str(tmp_path / "cache"))


@pytest.mark.parametrize("cache_bytes", [0, 500, MUCH])
@pytest.mark.parametrize("fetching", [Fetching(), SMALL_BLOCKS, Fetching(block_bytes=64)])
def test_granules_are_those_of_the_disk(remote, local, manifest, cache_bytes, fetching):
    expected = messages(LaneReader(local, manifest), manifest)
    reader = LaneReader(remote, manifest, cache_bytes=cache_bytes, fetching=fetching)
    for _ in range(2):
        assert messages(reader, manifest) == expected
    kept = sum(path.stat().st_size for path in cached(Path(remote.store.options.cache_folder)))
    assert kept <= cache_bytes
    assert bool(kept) == (cache_bytes > 0)


def test_each_epoch_after_the_first_is_read_from_the_disk(in_s3, local, manifest, traffic):
    expected = messages(LaneReader(local, manifest), manifest)
    assert messages(LaneReader(in_s3, manifest, cache_bytes=MUCH), manifest) == expected
    blocks = {*traffic.of(".arrow"), *traffic.of(".npy")}
    assert len(blocks) == len(traffic.reads) == len(set(traffic.reads))
    assert messages(LaneReader(in_s3, manifest, cache_bytes=MUCH), manifest) == expected
    assert len(traffic.reads) == len(blocks)


def test_a_resumed_worker_fetches_what_its_remaining_steps_need(in_s3, manifest, traffic):
    plan = BatchPlan(lanes=2, rows=manifest.rows, granules_per_step=2, seed=3)
    remaining = [
        (step, share(step, 1, 2))
        for step in plan.steps(plan.steps_per_epoch - 2, plan.steps_per_epoch)
    ]
    reader = LaneReader(in_s3, manifest, cache_bytes=MUCH, fetching=SMALL_BLOCKS)
    sizes = [
        len(reader.message(address))
        for _, addresses in reader.ahead(remaining)
        for address in addresses
    ]
    # Of its own lane alone, and at most a block before and one behind each granule.
    assert {Path(path).parent.name for path, _ in traffic.reads} == {"lane-001"}
    blocks = sum(size // SMALL_BLOCKS.block_bytes + 2 for size in sizes)
    assert len(traffic.of(".arrow")) <= blocks
    assert len(sizes) == 2


def _read_here(folder: RemotePath, manifest: LaneManifest, expected: list[bytes]) -> None:
    reader = LaneReader(folder, manifest, cache_bytes=MUCH, fetching=SMALL_BLOCKS)
    assert messages(reader, manifest) == expected


def test_processes_of_a_machine_fetch_each_block_once(in_s3, local, manifest, traffic):
    expected = messages(LaneReader(local, manifest), manifest)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_read_here, args=(in_s3, manifest, expected)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(traffic.of(".arrow")) == len(set(traffic.of(".arrow"))) > manifest.lanes
    assert len(traffic.of(".npy")) == len(set(traffic.of(".npy")))


@pytest.mark.parametrize("fault", [BUSY, CUT])
def test_a_store_that_fails_for_a_while_costs_time_alone(in_s3, local, manifest, traffic, fault):
    expected = messages(LaneReader(local, manifest), manifest)
    traffic.faults.extend([PASS, PASS, *[fault] * 4, PASS, fault, PASS, fault])
    reader = LaneReader(in_s3, manifest, cache_bytes=MUCH, fetching=SMALL_BLOCKS)
    assert messages(reader, manifest) == expected
    assert not traffic.faults


def test_a_store_that_stays_away_is_an_error_of_the_step(in_s3, manifest, traffic):
    folder = with_options(in_s3, retry_seconds=0.5)
    reader = LaneReader(folder, manifest, cache_bytes=MUCH)
    traffic.faults.extend([BUSY] * 1000)
    with pytest.raises(PipelineError, match=r"cannot be read any more .+training\.resume=true"):
        messages(reader, manifest)


@pytest.mark.parametrize(
    "tear",
    [lambda content: bytes(len(content)), lambda content: content[:10], lambda content: b""],
    ids=["zeros", "short", "empty"],
)
def test_what_the_disk_has_lost_is_fetched_again(
    remote, local, manifest, tear: Callable[[bytes], bytes]
):
    expected = messages(LaneReader(local, manifest), manifest)
    assert messages(LaneReader(remote, manifest, cache_bytes=MUCH), manifest) == expected
    paths = cached(Path(remote.store.options.cache_folder))
    whole = {path: path.read_bytes() for path in paths}
    for path, content in whole.items():
        path.write_bytes(tear(content))
    assert messages(LaneReader(remote, manifest, cache_bytes=MUCH), manifest) == expected
    assert {path: path.read_bytes() for path in paths} == whole


def test_files_of_the_user_in_the_cache_stay(remote, manifest):
    folder = Path(remote.store.options.cache_folder) / CACHE_FOLDER
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    for is_known in (False, True):
        if is_known:
            (folder / COUNT_FILE).touch()
        with pytest.raises(InputError, match=r"^storage.cache_folder: .* \(notes\.txt\)\. "):
            LaneReader(remote, manifest, cache_bytes=500)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_worker_begins_while_another_one_fetches_the_first_block(remote, local, manifest):
    # Before a block is there, nobody has counted the bytes; nor after its worker was killed.
    claimed = Path(remote.store.options.cache_folder, CACHE_FOLDER, f"{manifest.digest}-131072")
    (claimed / "lane-000").mkdir(parents=True)
    (claimed / "lane-000" / "granules.npy.000000.part").touch()
    reader = LaneReader(remote, manifest, cache_bytes=MUCH)
    assert messages(reader, manifest) == messages(LaneReader(local, manifest), manifest)


@pytest.mark.parametrize("cache_bytes", [0, MUCH])
def test_a_granule_that_is_damaged_in_the_store_is_named(tmp_path, cache_bytes):
    manifest = write_small_lanes(tmp_path / "lanes")
    damage_lane(tmp_path / "lanes", manifest, 1)
    options = StorageSettings(cache_folder=str(tmp_path / "cache"))
    folder = put(tmp_path / "lanes", RemotePath.parse(f"memory://{tmp_path.name}/x", options))
    reader = LaneReader(folder, manifest, cache_bytes=cache_bytes)
    assert reader.granule(GranuleAddress(lane=0, row=3)).examples == 4
    where = re.escape(f"{folder}/lane-001/part-00001.arrow")
    with pytest.raises(PipelineError, match=rf"^{where}: granule 1 is damaged: .*reuse=false"):
        reader.granule(GranuleAddress(lane=1, row=3))


def test_lanes_that_were_prepared_again_and_are_gone_are_told(tmp_path, remote, manifest):
    place = remote.place
    assert place is not None
    for seed in (2, 3):
        write_small_lanes(tmp_path / str(seed), seed=seed)
        put(tmp_path / str(seed), place)
    with pytest.raises(PipelineError, match=r" was prepared again since the run began\. Begin a"):
        messages(LaneReader(remote, manifest), manifest)
    versions.remove(place)
    with pytest.raises(PipelineError, match=r"lanes cannot be read any more \(there are no lanes"):
        messages(LaneReader(remote, manifest), manifest)


def test_the_same_lanes_elsewhere_need_no_second_copy(tmp_path, remote, local, manifest):
    messages(LaneReader(remote, manifest, cache_bytes=MUCH), manifest)
    found = cached(tmp_path / "cache")
    other = put(local, RemotePath.parse(f"memory://{tmp_path.name}-b/x", remote.store.options))
    for lane in range(manifest.lanes):
        shutil.rmtree(local / f"lane-{lane:03d}")
    messages(LaneReader(other, manifest, cache_bytes=MUCH), manifest)
    assert cached(tmp_path / "cache") == found


def test_a_reader_that_nobody_has_any_more_has_no_threads(remote, manifest):
    reader = LaneReader(remote, manifest, cache_bytes=MUCH)
    steps = reader.ahead((row, (GranuleAddress(lane=0, row=row),)) for row in range(manifest.rows))
    next(steps)
    del reader, steps
    await_threads_gone("lanes")
