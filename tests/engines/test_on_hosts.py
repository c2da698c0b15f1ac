"""Every engine on several hosts: the curve of one process, and no socket that the page leaves out.

The hosts take their own names for 127.0.1.1, as Debian's installer writes them, which no other host
reaches.
"""

import json
import pickle
import time
from collections import defaultdict

import numpy as np
import pytest
from engine_cases import ENGINE_CASES, trained_here
from host_cluster import host_cluster
from host_sockets import SocketWatch
from hosts import end, why_not
from small_runs import small_run
from socket_page import socket_rows

from pipelines.engines.base import load_engine
from pipelines.settings.load import parse

pytestmark = [
    # What torch listens at is compared where it loses an executor, in `test_faults.py`.
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.skipif(bool(reason := why_not()), reason=str(reason)),
]

SECONDS = 600
PAUSE_SECONDS = 0.1
# Enough for what listens during the steps to be seen.
STEPS = 100
# Of one process, and of dllib, of which each step is a Spark job or three.
COMPARED_STEPS = 12
KNOWN = {
    "framework": "tensorflow",
    "dropout": 0.0,
    # What fails is to be seen.
    "restarts": 0,
    # A machine that is busy is slow, which is no failure.
    "start_seconds": 300,
    "stall_seconds": 300,
}
CASES = [
    pytest.param(one, marks=one.marks, id=one.name)
    for one in ENGINE_CASES
    if one.launch not in {"local", "test"}
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with host_cluster(tmp_path_factory.mktemp("hosts"), "debian") as made:
        yield made


def run_on(cluster, folder, case):
    """The run of a case, with what a new session on the cluster needs in its conf."""
    engine = case.name.partition("-")[0]
    training = KNOWN | {"engine": engine} | case.training
    # Where dllib's engine looks for the lengths of the lanes.
    tree = {"training": training, "prepared": {"folder": str(folder)}}
    executors = load_engine(engine).executors(parse(tree))
    steps = STEPS if case.watched else COMPARED_STEPS
    tree |= {"spark": cluster.settings(executors)}
    return small_run(folder, steps, tree, layers=stages_of(case))


def stages_of(case):
    """How many layers the encoder of a case needs: a stage without any has nothing to train."""
    return case.training.get("pipeline_parallel", 1)


def trained_on(cluster, run, folder):
    """The losses of a run on the cluster, and what listened there meanwhile."""
    path, log, watch = folder / "run.pickle", folder / "driver.log", SocketWatch(cluster.hosts)
    path.write_bytes(pickle.dumps(run))
    driver = cluster.train(path, log)
    try:
        deadline = time.monotonic() + SECONDS
        while driver.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            watch.look()
            time.sleep(PAUSE_SECONDS)
    finally:
        end(driver)
    assert driver.returncode == 0, log.read_text()
    return np.array(json.loads(path.with_suffix(".json").read_text())), watch.most


@pytest.mark.parametrize("case", CASES)
def test_it_trains_on_hosts_and_listens_where_the_page_says(cluster, case):
    folder = cluster.folder / case.name  # All hosts see it.
    run = run_on(cluster, folder, case)
    losses, listened = trained_on(cluster, run, folder)
    assert len(losses) == run.last_step
    assert np.all(np.isfinite(losses))
    if case.equivalent:
        expected, _ = trained_here(in_one_process(case, run, folder), COMPARED_STEPS)
        np.testing.assert_allclose(losses[:COMPARED_STEPS], expected, rtol=1e-4)
    check_sockets(listened, run.config.training)


def in_one_process(case, run, folder):
    """The same run as the reference makes it, for which dllib's framework has no stepper."""
    training = run.config.training
    framework = {"bigdl": "torch"}.get(training.framework, training.framework)
    tree = {"training": {"framework": framework, "dropout": 0.0}}
    return small_run(folder / "reference", run.last_step, tree, layers=stages_of(case))


def check_sockets(listened, training):
    """What listened is what the page has for such a run: no socket more, and none less."""
    numbers = defaultdict(list)
    for row in socket_rows():
        if row.holds(training):
            numbers[row.process, row.reach].append(row.number)
    some = {place for place, found in numbers.items() if None in found}
    assert {place: most for place, most in listened.items() if place not in some} == {
        place: sum(found) for place, found in numbers.items() if place not in some
    }
