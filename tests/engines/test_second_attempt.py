"""A run whose driver is cut off from its worker, and goes on with another one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from fork_engine import ForkEngine
from numpy_stepper import NumpyStepper
from relays import SilentRelay
from small_runs import small_run

from pipelines.catalog import STEPPERS
from pipelines.engines.base import monitor_for
from pipelines.runs.attempts import accepted_checkpoints, checkpoint_name
from pipelines.runs.step_metrics import MetricsLog

pytestmark = pytest.mark.slow

STEPS, EVERY, STEP_SECONDS = 300, 10, 0.03
TRAINING = {"checkpoint_every": EVERY, "keep_checkpoints": STEPS, "restarts": 1, "log_every": 1}
CONTROL = "pipelines.training.control"


@pytest.fixture
def relays(monkeypatch):
    """What the monitors of the test engine are reached through."""
    made = []
    with ExitStack() as open_ones:

        def through_a_relay(*arguments, **named):
            monitor = monitor_for(*arguments, **named)
            made.append(open_ones.enter_context(SilentRelay(monitor.address)))
            monitor.address = made[-1].address
            return monitor

        monkeypatch.setattr("fork_engine.monitor_for", through_a_relay)
        yield made


@pytest.fixture
def slow_steps(monkeypatch):
    """So slow that a worker which is given up has steps to make."""
    make_step = NumpyStepper.step

    def step(*arguments):
        time.sleep(STEP_SECONDS)
        return make_step(*arguments)

    monkeypatch.setattr(NumpyStepper, "step", step)
    monkeypatch.setitem(STEPPERS.entries, "numpy", "numpy_stepper:NumpyStepper")


def test_a_run_goes_on_without_the_worker_that_cannot_hear_its_driver(
    tmp_path, monkeypatch, relays, slow_steps
):
    # The driver is the first to give up: the worker lives, and writes, when the next one begins.
    monkeypatch.setattr(f"{CONTROL}.monitor.SILENCE_SECONDS", 4.0)
    monkeypatch.setattr(f"{CONTROL}.monitor.ABORT_SECONDS", 0.5)
    monkeypatch.setattr(f"{CONTROL}.reporter.UNHEARD_SECONDS", 12.0)
    monkeypatch.setattr("fork_engine.JOIN_SECONDS", 0.0)
    run = small_run(tmp_path, STEPS, {"training": TRAINING})
    training = run.config.training.model_copy(update={"framework": "numpy", "engine": "test"})
    run = replace(run, config=run.config.model_copy(update={"training": training}))
    losses = {}

    def listen(line):
        log.add(line)
        losses[line["step"]] = line["loss"]
        if line["step"] == 3 * EVERY and len(relays) == 1:
            relays[0].fall_silent()

    with MetricsLog(run) as log:
        outcome = ForkEngine().train(None, run, listen)
    (restart,) = outcome.restarts
    assert "nothing was heard of it for 4 s" in restart.cause
    assert 0 < restart.step <= restart.made
    names = {step: path.name for step, path in accepted_checkpoints(run.run_folder).items()}
    assert sorted(names) == list(range(0, STEPS + 1, EVERY))
    for step, name in names.items():
        assert name == checkpoint_name(step, 1 if step <= restart.step else 2)
    there = {path.name for path in (run.run_folder / "checkpoints").glob("step-*")}
    # The worker that was given up was refused when it had its next one.
    assert there == set(names.values())
    assert np.isfinite(list(losses.values())).all()
    assert sorted(losses) == list(range(1, STEPS + 1))
