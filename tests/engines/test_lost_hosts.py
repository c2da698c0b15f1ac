"""On three hosts: one that is cut off is named, and ten seconds without it lose nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corpus_factory import small_config
from engine_cases import ENGINE_CASES, EngineCase
from host_cluster import HostCluster, host_cluster
from hosts import why_not
from test_contract import ENDLESS, STALL_SECONDS, reference_framework

from pipelines.settings import load as configuration

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(bool(reason := why_not()), reason=str(reason)),
]

CLI = ["-c", "import sys; from pipelines.cli import main; sys.exit(main())"]
CASES = {one.name: one for one in ENGINE_CASES}
ENGINES = (
    *("torch-ddp", "deepspeed-zero1", "horovod-torch", "horovod-tensorflow", "bigdl-torch"),
    *("tensorflowonspark-lanes", "tensorflowonspark-async", "elephas-async", "bigdl"),
)
AT, STEPS, AWAY_SECONDS = 20, 400, 10.0
SECONDS = 600.0
EXECUTOR, PYTHON = "CoarseGrainedExecutorBackend", "daemon"


def started(
    cluster: HostCluster, prepared: Path, case: EngineCase, steps: int
) -> tuple[subprocess.Popen[bytes], Path]:
    """A driver whose run has made some steps, and the folder of its run."""
    run = cluster.folder / "run"
    training = case.training | {"engine": case.make().name, "max_steps": steps, "epochs": ENDLESS}
    training |= {"stall_seconds": STALL_SECONDS}
    # The schedule is that of the runs that curves are compared with.
    config = small_config(prepared, **training)
    config = config.model_copy(update={"run": config.run.model_copy(update={"folder": str(run)})})
    (cluster.folder / "job.yaml").write_text(configuration.dump(config))
    nodes = case.make().executors(config)
    given = [f"--set=spark.{key}={value}" for key, value in cluster.settings(nodes).items()]
    command = [*CLI, "train", "--config", str(cluster.folder / "job.yaml"), *given]
    driver = cluster.start(command, cluster.folder / "driver.log")
    wait_until(lambda: len(losses(run)) >= AT or driver.poll() is not None)
    assert driver.poll() is None, told(cluster)
    return driver, run


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def losses(run: Path) -> list[float]:
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line)["loss"] for line in lines if line.endswith("\n")]


def told(cluster: HostCluster) -> str:
    return (cluster.folder / "driver.log").read_text(errors="replace")[-6000:]


def cases(names: tuple[str, ...]) -> list:
    return [pytest.param(CASES[name], marks=CASES[name].marks, id=name) for name in names]


@pytest.mark.parametrize("case", cases(ENGINES))
def test_ten_seconds_without_a_host_lose_nothing(prepared, tmp_path, reference, case):
    with host_cluster(tmp_path, cores=2, seen=[prepared]) as cluster:
        driver, run = started(cluster, prepared, case, STEPS)
        cluster.hosts[-1].cut_off()
        time.sleep(AWAY_SECONDS)
        cluster.hosts[-1].join()
        assert driver.wait(SECONDS) == 0, told(cluster)
    made = losses(run)
    assert len(made) == STEPS
    assert not (run / "restarts.json").exists()
    if case.equivalent and case.repeats:
        expected = reference(STEPS, reference_framework(case))
        np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", cases(ENGINES))
def test_a_host_that_is_cut_off_is_named(prepared, tmp_path, case):
    with host_cluster(tmp_path, cores=2, seen=[prepared]) as cluster:
        driver, _ = started(cluster, prepared, case, ENDLESS)
        lost = cluster.hosts[-1]
        lost.cut_off()
        check_blame(cluster, driver, case, "nothing was heard of it for ")


LOSSES = {
    "worker-killed": (PYTHON, signal.SIGKILL, "the worker's process died"),
    "worker-stopped": (PYTHON, signal.SIGSTOP, "nothing was heard of it for "),
    "executor-killed": (EXECUTOR, signal.SIGKILL, r"the worker's process died.* code 137"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", cases(tuple(name for name in ENGINES if name != "bigdl")))
def test_a_worker_that_is_gone_is_named(prepared, tmp_path, case, loss):
    part, number, cause = LOSSES[loss]
    with host_cluster(tmp_path, cores=2, seen=[prepared]) as cluster:
        driver, _ = started(cluster, prepared, case, ENDLESS)
        assert cluster.hosts[-1].signal(part, number)
        check_blame(cluster, driver, case, cause)


def check_blame(
    cluster: HostCluster, driver: subprocess.Popen[bytes], case: EngineCase, cause: str
) -> None:
    """The run ends with one error, which names the worker of the last host and no other."""
    began = time.monotonic()
    assert driver.wait(SECONDS) == 1, told(cluster)
    print(f"{case.name}: {time.monotonic() - began:.1f} s")
    text = told(cluster)
    host = cluster.hosts[-1].name
    assert re.search(
        rf"error: engine {case.make().name}, rank \d, host {host}(, lane \d)?: .*{cause}", text
    ), text
    assert "Traceback" not in text
    assert "\tat " not in text, "no stack of Java's"
