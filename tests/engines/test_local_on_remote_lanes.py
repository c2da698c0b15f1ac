"""A run on lanes in a bucket is the run on the same lanes on a disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from lanes_factory import VOCABULARY, write_small_lanes

from pipelines.engines.local import LocalEngine
from pipelines.files import storage, versions
from pipelines.files.locations import Location
from pipelines.lanes.files import LaneManifest
from pipelines.models.bert.spec import BertSpec
from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pipelines.runs.run import TrainingRun
from pipelines.settings.load import parse
from pipelines.training_plan import batch_plan

STEPS = 12  # two epochs, and a part of a third
SPEC = BertSpec(vocabulary=VOCABULARY, layers=1, hidden=16, heads=2, intermediate=32, positions=16)


@pytest.fixture
def manifest(tmp_path) -> LaneManifest:
    return write_small_lanes(tmp_path / "lanes")


@pytest.fixture
def run(tmp_path, manifest) -> TrainingRun:
    training = {
        "engine": "local",
        "framework": "torch",
        "workers": 1,
        "granules_per_step": 2,
        "threads": 1,
        "precision": "fp32",
        "checkpoint_every": STEPS // 2,
    }
    config = parse({"training": training, "prepared": {"cache_gigabytes": 0.000005}})
    save_checkpoint(tmp_path / "run", Checkpoint(0, SPEC, random_weights(SPEC, 5), {}), 9)
    return TrainingRun(
        config=config,
        plan=batch_plan(config, manifest),
        manifest=manifest,
        lanes_folder=tmp_path / "lanes",
        run_folder=tmp_path / "run",
        first_step=0,
        last_step=STEPS,
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
