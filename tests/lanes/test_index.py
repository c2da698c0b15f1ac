"""What is read from the lanes is what was written there, or an error that says where it is not."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lanes_factory import VOCABULARY, damage_lane, write_small_lanes

from pipelines.errors import PipelineError
from pipelines.lanes.files import index_path, part_path
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader


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
        PipelineError, match=rf"^{path} is damaged: its checksum is not that of the manifest;"
    ):
        messages(tmp_path / "a", manifest)


def test_the_same_lanes_have_the_same_digest(tmp_path):
    assert write_small_lanes(tmp_path / "a").digest == write_small_lanes(tmp_path / "b").digest


def test_ids_beyond_the_vocabulary_are_not_written(tmp_path):
    # Half of the examples are in the first lane, and the first of the others has the largest id.
    message = rf"lane-001.part-00000\.arrow: granule 0 would have the token id {VOCABULARY}, "
    with pytest.raises(PipelineError, match=message):
        write_small_lanes(tmp_path, largest=VOCABULARY)
