"""What is read from lanes is what was written there, or an error that says where it is not."""

from __future__ import annotations

import gc
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes_factory import VOCABULARY, damage_lane, write_small_lanes
from waiting import await_threads_gone

from pipelines.errors import PipelineError
from pipelines.lanes.files import index_path, part_path
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader, ReadAhead, check_unchanged


def messages(folder: Path, manifest) -> list[bytes]:
    reader = LaneReader(folder, manifest)
    return [reader.message(address).to_pybytes() for address, _ in reader]


def test_a_part_is_an_arrow_file_of_the_same_granules(tmp_path):
    manifest = write_small_lanes(tmp_path)
    reader = LaneReader(tmp_path, manifest)
    for lane in range(manifest.lanes):
        files = [pa.ipc.open_file(str(part_path(tmp_path, lane, part))) for part in range(3)]
        batches = [file.get_batch(i) for file in files for i in range(file.num_record_batches)]
        assert len(batches) == manifest.rows
        for row, batch in enumerate(batches):
            assert batch.equals(reader.batch(GranuleAddress(lane=lane, row=row)))


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_changed_bit_is_read(tmp_path, data):
    folder = tmp_path / "lanes"
    shutil.rmtree(folder, ignore_errors=True)
    manifest = write_small_lanes(folder)
    whole = messages(folder, manifest)
    path = data.draw(st.sampled_from(sorted(folder.glob("lane-*/*"))))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        # What is outside of the granules, Arrow's own index of them, is not read.
        assert messages(folder, manifest) == whole
        assert path.suffix == ".arrow"
    except PipelineError as error:
        assert str(error).startswith(str(path))


def test_a_changed_token_names_file_and_granule(tmp_path):
    manifest = write_small_lanes(tmp_path)
    damage_lane(tmp_path, manifest, 1)
    reader = LaneReader(tmp_path, manifest)
    assert reader.granule(GranuleAddress(lane=0, row=3)).examples == 4
    where = re.escape(str(tmp_path / "lane-001" / "part-00001.arrow"))
    with pytest.raises(PipelineError, match=rf"^{where}: granule 1 is damaged: .*reuse=false"):
        reader.granule(GranuleAddress(lane=1, row=3))


def test_a_part_that_is_cut_short_is_named(tmp_path):
    manifest = write_small_lanes(tmp_path)
    path = part_path(tmp_path, 0, 0)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(PipelineError, match=rf"^{re.escape(str(path))} ends before its granule 0"):
        messages(tmp_path, manifest)


def test_a_lane_that_was_prepared_anew_is_refused(tmp_path):
    manifest = write_small_lanes(tmp_path / "a")
    assert manifest.digest != write_small_lanes(tmp_path / "b", seed=2).digest
    shutil.rmtree(tmp_path / "a" / "lane-001")
    shutil.copytree(tmp_path / "b" / "lane-001", tmp_path / "a" / "lane-001")
    path = re.escape(str(index_path(tmp_path / "a", 1)))
    with pytest.raises(
        PipelineError, match=rf"^{path} is damaged: its checksum is not that of the manifest\."
    ):
        messages(tmp_path / "a", manifest)


def test_the_same_lanes_have_the_same_digest(tmp_path):
    assert write_small_lanes(tmp_path / "a").digest == write_small_lanes(tmp_path / "b").digest


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path):
    # Half of the examples are in the first lane, and the first of the others has the largest id.
    message = rf"lane-001.part-00000\.arrow: granule 0 would have the token id {VOCABULARY}, "
    with pytest.raises(PipelineError, match=message):
        write_small_lanes(tmp_path, largest=VOCABULARY)


AGAIN = r" was prepared again since the run began\. Begin anew with run\.overwrite=true\.$"
GONE = r" cannot be read any more \(.+\)\. Restore it, then continue with training\.resume=true\.$"


def test_lanes_that_are_not_those_of_the_manifest(tmp_path):
    manifest = write_small_lanes(tmp_path)
    check_unchanged(tmp_path, manifest)
    replace(manifest, examples=manifest.examples + 1).save(tmp_path)
    with pytest.raises(PipelineError, match=AGAIN):
        check_unchanged(tmp_path, manifest)


@pytest.mark.parametrize("content", [None, "", "[1]"], ids=["absent", "empty", "no object"])
def test_lanes_that_cannot_be_read_were_not_prepared_again(tmp_path, content):
    """What a lost mount leaves is no reason to begin anew."""
    manifest = write_small_lanes(tmp_path)
    (tmp_path / "manifest.json").unlink()
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(PipelineError, match=GONE):
        check_unchanged(tmp_path, manifest)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_later_part_of_other_lanes_is_told_from_a_damaged_one(tmp_path, is_gone):
    """What has been opened is read to its end; the next part of the lane is another's."""
    folder = tmp_path / "lanes"
    folder.mkdir()
    manifest = write_small_lanes(folder)
    first, same, later = (GranuleAddress(lane=0, row=row) for row in (0, 1, 2))
    reader = LaneReader(folder, manifest)
    before = reader.batch(same)
    reader = LaneReader(folder, manifest)
    reader.batch(first)
    part = part_path(folder, 0, 1)
    content = part.read_bytes()
    part.write_bytes(bytes(len(content)))
    with pytest.raises(PipelineError, match="is damaged: its checksum is not"):
        LaneReader(folder, manifest).batch(later)
    shutil.rmtree(folder)
    folder.mkdir()
    if not is_gone:
        write_small_lanes(folder, seed=2)
    assert reader.batch(same).equals(before)
    with pytest.raises(PipelineError, match=GONE if is_gone else AGAIN):
        reader.batch(later)


STEPS = 40
EACH = 3


def steps() -> Iterator[tuple[int, tuple[GranuleAddress, ...]]]:
    for step in range(STEPS):
        yield step, tuple(GranuleAddress(lane=lane, row=step) for lane in range(EACH))


class Fetched:
    """Notes what is fetched, and gives the row of each granule."""

    def __init__(self, failing_row: int = -1) -> None:
        self.addresses: list[GranuleAddress] = []
        self._failing_row = failing_row

    def __call__(self, address: GranuleAddress) -> pa.Buffer:
        self.addresses.append(address)
        if address.row == self._failing_row:
            raise OSError(f"row {address.row} is gone")
        return pa.py_buffer(str(address).encode())


def await_count(fetched: Fetched, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(fetched.addresses) < count:
        assert time.monotonic() < deadline, fetched.addresses
        time.sleep(0.005)


def test_every_step_finds_its_granules_and_no_granule_is_fetched_twice():
    fetched, seen = Fetched(), []
    reader = ReadAhead(steps(), fetched, requests=4, most=7)
    for step, addresses in reader:
        seen.append(step)
        for address in addresses:
            assert reader.take(address).to_pybytes() == str(address).encode()
    assert seen == list(range(STEPS))
    wanted = {address for _, addresses in steps() for address in addresses}
    assert len(fetched.addresses) == len(wanted)
    assert set(fetched.addresses) == wanted
    await_threads_gone("lanes")


@pytest.mark.parametrize("most", [1, 7, 30])
def test_it_begins_at_once_and_goes_no_further_than_it_may(most):
    fetched = Fetched()
    reader = ReadAhead(steps(), fetched, requests=2, most=most)
    # Whole steps: the last of them may go beyond.
    first = -(-most // EACH) * EACH
    await_count(fetched, first)
    next(reader)
    await_count(fetched, first + EACH)
    time.sleep(0.05)
    assert len(fetched.addresses) == first + EACH
    reader.close()
    await_threads_gone("lanes")


def test_an_error_waits_for_the_step_that_needs_the_granule():
    reader = ReadAhead(steps(), Fetched(failing_row=5), requests=4, most=60)
    for step, addresses in reader:
        if step == 5:
            with pytest.raises(OSError, match="row 5 is gone"):
                reader.take(addresses[0])
            break
        for address in addresses:
            reader.take(address)
    reader.close()


def test_what_nobody_reads_any_more_is_not_fetched():
    slow, began = threading.Event(), threading.Event()

    def fetch(address: GranuleAddress) -> pa.Buffer:
        began.set()
        slow.wait(120)
        return pa.py_buffer(b"")

    reader = ReadAhead(steps(), fetch, requests=2, most=90)
    assert began.wait(120)
    del reader
    gc.collect()
    slow.set()
    await_threads_gone("lanes")
