"""The feeds of one worker: the same granules in the same order, from files and from memory."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from lanes_factory import write_small_lanes
from planned_runs import make_run, make_task

from pipelines.files import storage, versions
from pipelines.files.locations import RemotePath
from pipelines.lanes.plan import BatchPlan
from pipelines.settings.spark import StorageSettings
from pipelines.training.steppers.base import FILE_FEEDS, lane_feed, memory_feed, one_ahead

EPOCHS = 4


@pytest.fixture
def task(tmp_path):
    """A single worker's task of some epochs of small lanes."""
    manifest = write_small_lanes(tmp_path)
    plan = BatchPlan(lanes=2, rows=manifest.rows, granules_per_step=2, seed=1)
    run = make_run(EPOCHS * plan.steps_per_epoch, folder=tmp_path, workers=1)
    return make_task(replace(run, manifest=manifest, plan=plan), 0)


def test_memory_brings_what_the_files_hold(task):
    kept = list(memory_feed(task))
    for ours, read in zip(kept, lane_feed(task), strict=True):
        assert (ours.index, ours.epoch) == (read.index, read.epoch)
        for one, other in zip(ours.granules, read.granules, strict=True):
            assert one.number == other.number
            for name, side in other.sides.items():
                np.testing.assert_array_equal(one.sides[name].token_ids, side.token_ids)


def test_memory_keeps_each_granule_once(task):
    kept = [granule for work in memory_feed(task) for granule in work.granules]
    granules = task.run.manifest.lanes * task.run.manifest.rows
    assert len(kept) == EPOCHS * granules
    assert len({id(granule) for granule in kept}) == granules


@pytest.mark.parametrize("feed", FILE_FEEDS.values(), ids=FILE_FEEDS)
def test_lanes_of_a_store_bring_the_same_steps(task, tmp_path, feed):
    options = StorageSettings(cache_folder=str(tmp_path / "cache"))
    folder = RemotePath.parse(f"memory://{tmp_path.name}-{feed.__name__}/lanes", options)
    with storage.built_folder(folder) as made:
        storage.copy_folder(tmp_path, made)
    far = replace(task, run=replace(task.run, lanes_folder=versions.current(folder)))
    for ours, read in zip(feed(far), lane_feed(task), strict=True):
        assert (ours.index, ours.epoch) == (read.index, read.epoch)
        assert [one.number for one in ours.granules] == [one.number for one in read.granules]
        for one, other in zip(ours.granules, read.granules, strict=True):
            np.testing.assert_array_equal(one.anchor.token_ids, other.anchor.token_ids)
    assert list((tmp_path / "cache" / "lanes").rglob("*.arrow.*"))


def test_the_next_item_is_made_while_one_is_used():
    made = []

    def items():
        for number in range(3):
            made.append(number)
            yield number
        raise OSError("a lane is gone")

    ahead, deadline = one_ahead(items()), time.monotonic() + 60
    assert next(ahead) == 0
    while made != [0, 1] and time.monotonic() < deadline:
        time.sleep(0.001)
    assert made == [0, 1]
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(OSError, match="a lane is gone"):
        next(ahead)


def test_a_feed_that_is_left_early_leaves_no_thread():
    before = threading.active_count()
    ahead, deadline = one_ahead(iter(range(9))), time.monotonic() + 60
    assert next(ahead) == 0
    ahead.close()
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == before
