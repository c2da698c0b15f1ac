"""The driver's host is cut off: its workers end, and another host goes on with the run."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from corpus_factory import small_config
from engine_cases import ENGINE_CASES, EngineCase
from host_cluster import host_cluster
from hosts import why_not

from pipelines.runs.attempts import accepted_checkpoints, checkpoint_name
from pipelines.runs.checkpoint import checkpoint_steps, newest_whole_checkpoint
from pipelines.settings import load as configuration

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(bool(reason := why_not()), reason=str(reason)),
]

CLI = ["-c", "import sys; from pipelines.cli import main; sys.exit(main())"]
WATCHDOG = "watchdog.py"
"""There is one beside each worker and parameter server, as long as that lives."""
GONE_SECONDS = 60.0
SECONDS = 300.0
# So many that the workers have steps to make when the driver is cut off, and long after.
ENDLESS = 10**6
EVERY, MORE = 20, 30
CASES = {one.name: one for one in ENGINE_CASES}
CUT_OFF = (
    *("torch-ddp", "torch-fsdp", "deepspeed-zero3", "bigdl-torch"),
    *("horovod-torch", "horovod-tensorflow"),
    *("tensorflowonspark-lanes", "tensorflowonspark-async", "tensorflowonspark-spark"),
    *("elephas-sync", "elephas-async"),
)


def wait_until(holds: Callable[[], object], seconds: float = SECONDS) -> float:
    """Waits, with a deadline; returns how long."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        time.sleep(0.2)
    return time.monotonic() - began


def settings_file(run: Path, prepared: Path, case: EngineCase, steps: int) -> Path:
    """Settings of a training that goes on where it can, by the same learning rate throughout."""
    training = case.training | {"engine": case.make().name, "max_steps": steps, "epochs": ENDLESS}
    training |= {"checkpoint_every": EVERY, "schedule": "constant", "warmup": 0.0, "resume": True}
    config = small_config(prepared, **training)
    own = config.run.model_copy(update={"folder": str(run)})
    path = run.parent / f"{steps}.yaml"
    path.write_text(configuration.dump(config.model_copy(update={"run": own})))
    return path


def command(settings: Path, spark: Mapping[str, str]) -> list[str]:
    given = [f"--set=spark.{key}={value}" for key, value in spark.items()]
    return [*CLI, "train", "--config", str(settings), *given]


def losses(run: Path, after: int) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["step"] > after]


@pytest.mark.parametrize("name", [pytest.param(one, marks=CASES[one].marks) for one in CUT_OFF])
def test_another_host_goes_on_with_the_run_of_one_that_is_cut_off(prepared, tmp_path, name):
    case, run = CASES[name], tmp_path / "run"
    nodes = case.make().executors(small_config(prepared, **case.training))
    with host_cluster(tmp_path, cores=2, seen=[prepared]) as cluster:
        first, *others = cluster.hosts
        settings = settings_file(run, prepared, case, ENDLESS)
        driver = cluster.start(command(settings, cluster.settings(nodes)), tmp_path / "first.log")
        wait_until(lambda: max(checkpoint_steps(run), default=0) >= EVERY)
        assert sum(len(host.processes(WATCHDOG)) for host in others) == nodes
        first.cut_off()
        gone = wait_until(lambda: not any(host.processes(WATCHDOG) for host in others), SECONDS)
        # What the workers were children of goes too, but for Spark's own.
        python = [one for host in others for one in host.processes("daemon")]
        print(
            f"{name}: gone after {gone:.1f} s", [(one.pid, one.cpu_times()[:2]) for one in python]
        )
        assert gone < GONE_SECONDS
        # It gives its workers up, and the run.
        assert driver.wait(SECONDS) == 1
        newest = newest_whole_checkpoint(run)
        shutil.copytree(run, tmp_path / "copy" / "run")

        settings = settings_file(run, prepared, case, newest + MORE)
        spark = {"master": f"local-cluster[{nodes},1,1024]"}
        second = [sys.executable, *command(settings, spark)]
        here = {"SPARK_LOCAL_IP": others[0].address}
        assert others[0].run(second, tmp_path / "second.log", SECONDS, here) == 0
    assert checkpoint_steps(run)[-1] == newest + MORE
    assert accepted_checkpoints(run)[newest + MORE].name == checkpoint_name(newest + MORE, 2)
    assert (run / "model" / "modules.json").is_file()
    if case.equivalent:
        alone = CASES["local-torch" if case.training.get("framework") == "torch" else "local"]
        copy = tmp_path / "copy" / "run"
        settings = settings_file(copy, prepared, alone, newest + MORE)
        subprocess.run([sys.executable, *command(settings, {})], check=True, timeout=SECONDS)
        np.testing.assert_allclose(losses(run, newest), losses(copy, newest), rtol=1e-3)
    assert len(losses(run, newest)) == MORE


def test_what_a_stopped_worker_writes_late_is_not_gone_on_from(prepared, tmp_path):
    """It was suspended with its watchdog, and wakes up when another attempt has ended."""
    case, run = CASES["torch-ddp"], tmp_path / "run"
    with host_cluster(tmp_path, cores=2, seen=[prepared]) as cluster:
        first, *others = cluster.hosts
        settings = settings_file(run, prepared, case, ENDLESS)
        driver = cluster.start(command(settings, cluster.settings(2)), tmp_path / "first.log")
        wait_until(lambda: max(checkpoint_steps(run), default=0) >= EVERY)
        first.cut_off()
        for host in others:
            assert host.signal("daemon", signal.SIGSTOP)
            assert host.signal(WATCHDOG, signal.SIGSTOP)
        assert driver.wait(SECONDS) == 1
        newest = newest_whole_checkpoint(run)
        settings = settings_file(run, prepared, CASES["local-torch"], newest + MORE)
        second = [sys.executable, *command(settings, {})]
        assert others[0].run(second, tmp_path / "second.log", SECONDS) == 0
        for host in others:
            host.signal("daemon", signal.SIGCONT)
            host.signal(WATCHDOG, signal.SIGCONT)
        wait_until(lambda: not any(host.processes(WATCHDOG) for host in others), GONE_SECONDS)
    assert checkpoint_steps(run)[-1] == newest_whole_checkpoint(run) == newest + MORE
    assert accepted_checkpoints(run)[newest + MORE].name == checkpoint_name(newest + MORE, 2)
    assert len(losses(run, newest)) == MORE
