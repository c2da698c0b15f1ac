"""A run on lanes in a bucket is the run on the same lanes on a disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_runs import small_run

from pipelines.engines.local import LocalEngine
from pipelines.files import storage, versions
from pipelines.files.locations import Location
from pipelines.runs.checkpoint import load_checkpoint
from pipelines.runs.run import TrainingRun

STEPS = 12  # two epochs, and a part of a third


@pytest.fixture
def run(tmp_path) -> TrainingRun:
    cache = {"cache_gigabytes": 0.000005}
    return small_run(
        tmp_path, STEPS, {"training": {"checkpoint_every": STEPS // 2}, "prepared": cache}
    )


def test_the_curve_and_the_weights_are_the_same(tmp_path, run, s3_bucket):
    options = s3_bucket.options.model_copy(update={"cache_folder": str(tmp_path / "cache")})
    folder: Location = replace(s3_bucket, options=options).root / "prepared" / "lanes"
    with storage.built_folder(folder) as made:
        storage.copy_folder(tmp_path / "lanes", made)
    near = LocalEngine().train(None, run, lambda _: None)
    # From the checkpoint in the middle of an epoch on, as a run that goes on elsewhere.
    far = replace(run, lanes_folder=versions.current(folder), first_step=STEPS // 2)
    weights = load_checkpoint(tmp_path / "run", STEPS).weights
    resumed = LocalEngine().train(None, far, lambda _: None)
    np.testing.assert_array_equal(resumed.losses, near.losses[STEPS // 2 :])
    for name, array in load_checkpoint(tmp_path / "run", STEPS).weights.items():
        np.testing.assert_array_equal(array, weights[name])
    kept = [path for path in (tmp_path / "cache" / "lanes").rglob("*.arrow.*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in kept) <= 5000


def test_a_bucket_that_cannot_be_read_is_an_error_of_the_rank(run, s3_bucket):
    folder = s3_bucket.root / "nothing"
    with pytest.raises(Exception, match=r"engine local, rank 0.*lane 0.*cannot be read any more"):
        LocalEngine().train(None, replace(run, lanes_folder=folder), lambda _: None)
