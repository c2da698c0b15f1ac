"""The feeds of one worker: the same granules in the same order, from files and from memory."""

from dataclasses import replace

import numpy as np
import pytest
from lanes_factory import write_small_lanes
from planned_runs import make_run, make_task

from pipelines.lanes.plan import BatchPlan
from pipelines.training.feed import lane_feed, memory_feed

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
