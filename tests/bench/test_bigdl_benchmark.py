"""What is measured of BigDL's steps."""

from dataclasses import replace

import pytest
from corpus_factory import small_config
from lanes_factory import small_manifest

from pipelines.engines.bigdl.progress import StepTimes
from pipelines.errors import InputError
from pipelines_bench.bigdl import WARM_UP_STEPS, _durations, _sized


def test_a_step_has_the_pairs_that_are_asked_for(tmp_path):
    manifest = small_manifest()
    config = small_config(tmp_path, precision="bf16", dropout=0.1)
    training = _sized(config, manifest, 2 * manifest.granule).training
    assert training.granules_per_step == 2
    assert (training.precision, training.dropout) == ("fp32", 0.0)


@pytest.mark.parametrize(("granule", "lanes"), [(60, 48), (128, 48), (1024, 48), (64, 3)])
def test_lanes_that_do_not_give_such_steps_are_refused(tmp_path, granule, lanes):
    other = replace(small_manifest(), granule=granule, lanes=lanes)
    with pytest.raises(InputError, match=r"give no steps of 128 for 2 workers"):
        _sized(small_config(tmp_path, workers=2), other, 128)


def test_steps_that_warm_up_are_left_out():
    ends = [9.0, 14.0, 15.0, 17.0]
    times = [StepTimes(number, 1.0, end, 0.5) for number, end in enumerate(ends, 1)]
    assert WARM_UP_STEPS == 2
    assert _durations(times) == [1.0, 2.0]
