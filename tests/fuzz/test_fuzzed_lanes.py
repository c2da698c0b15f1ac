"""Lanes of which any file is damaged: a granule is what was written, or is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes_factory import write_small_lanes
from mutations import damaged_file, fuzzed, read_or_refused

from pipelines.lanes.files import LaneManifest
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader


@pytest.fixture(scope="module")
def lanes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lanes")
    write_small_lanes(folder)
    return folder


def read_all(folder: Path) -> list[bytes]:
    manifest = LaneManifest.load(folder)
    reader = LaneReader(folder, manifest)
    addresses = [
        GranuleAddress(lane=lane, row=row)
        for row in range(manifest.rows)
        for lane in range(manifest.lanes)
    ]
    return [reader.granule(address).anchor.token_ids.tobytes() for address in addresses]


@fuzzed
@given(data=st.data())
def test_no_damage_is_read_as_granules(lanes, data):
    expected = read_all(lanes)
    path = data.draw(st.sampled_from(sorted(path for path in lanes.rglob("*") if path.is_file())))
    whole = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged_file(path)))
        found = read_or_refused(lambda: read_all(lanes), str(lanes))
        assert found is None or found == expected
    finally:
        path.write_bytes(whole)
