"""Whole trainings on a cluster that encrypts: the curve of one process, and nothing to overhear.

Each has a network of its own, so that the packets of other tests are not taken for its own.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from engine_cases import trained_here
from hosts import why_not
from local_cluster import BRIEF
from small_runs import small_run

from pipelines.engines.base import load_engine
from pipelines.settings.load import parse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason := why_not()), reason=str(reason)),
]

STEPS = 6
SECONDS = 600
GREETING = '"kind": "hello"'
"""What a worker's first line to the driver has beside the token."""
ENCRYPTED = {"network.crypto.enabled": "true"}
CASES = {
    "tensorflowonspark": {"engine": "tensorflowonspark", "framework": "tensorflow"},
    "tensorflowonspark-async": {
        "engine": "tensorflowonspark",
        "framework": "tensorflow",
        "mode": "async",
        "workers": 1,
        "parameter_servers": 2,
    },
    "elephas": {"engine": "elephas", "framework": "tensorflow", "mode": "async", "workers": 1},
    "torch": {"engine": "torch", "workers": 1},
}
# What other engines encrypt beside is in `test_elephas_servers.py` and `test_registration.py`.
QUICK = {"torch"}


def run_on_a_cluster(folder, training, conf):
    """A run, for a session of its own on a cluster of this machine."""
    training = {"workers": 2, "dropout": 0.0, "restarts": 0} | training
    executors = load_engine(training["engine"]).executors(parse({"training": training}))
    spark = {"master": f"local-cluster[{executors},1,1024]", **BRIEF, **conf}
    return small_run(folder, STEPS, {"training": training, "spark": spark})


def trained_and_watched(run, folder):
    """The losses of a run, what its driver wrote on the screen, and how many packets told."""
    path = folder / "run.pickle"
    path.write_bytes(pickle.dumps(run))
    watch = str(Path(__file__).parents[1] / "support" / "packet_watch.py")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, watch, str(path), GREETING],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = np.array(json.loads(path.with_suffix(".json").read_text()))
    return losses, done.stderr, int(path.with_suffix(".packets").read_text())


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.matrix) for one in CASES],
)
def test_a_run_on_a_cluster_that_encrypts(name, tmp_path):
    run = run_on_a_cluster(tmp_path, CASES[name], ENCRYPTED)
    losses, said, packets = trained_and_watched(run, tmp_path)
    framework = {"framework": run.config.training.framework, "dropout": 0.0}
    reference = small_run(tmp_path / "reference", STEPS, {"training": framework})
    expected, _ = trained_here(reference, STEPS)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert packets == 0
    warning = "spark.network.crypto.enabled is set, and engine torch still sends in clear text"
    assert (warning in said) == (name == "torch")


@pytest.mark.matrix
def test_in_clear_text_the_same_packets_are_seen(tmp_path):
    run = run_on_a_cluster(tmp_path, CASES["torch"], {})
    _, _, packets = trained_and_watched(run, tmp_path)
    assert packets > 0
