"""Lanes that are prepared again while they are read are noticed."""

import shutil
from dataclasses import replace

import pytest
from lanes_factory import write_small_lanes

from pipelines.errors import PipelineError
from pipelines.lanes.files import part_path
from pipelines.lanes.plan import GranuleAddress
from pipelines.lanes.reader import LaneReader, check_unchanged

AGAIN = r" was prepared again since the run began, begin anew with run\.overwrite=true$"
GONE = r" cannot be read any more \(.+\): bring it back, then go on with training\.resume=true$"


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
