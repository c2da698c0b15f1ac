"""Runs that lose workers and go on, on any engine, with the curve of those that lose none."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from engine_cases import ENGINE_CASES, EngineCase
from losing_workers import (
    cut_between_ranks,
    kill,
    kill_the_executor,
    kill_the_one_that_saves,
    stop,
    take_executors,
    tell_to_end,
)
from test_contract import listening, reference_framework, started, wait_until_gone

from pipelines.engines.base import Engine, rest_of
from pipelines.errors import EngineError, WorkerLostError
from pipelines.runs.checkpoint import (
    checkpoint_path,
    checkpoint_steps,
    load_checkpoint,
    save_checkpoint,
)
from pipelines.runs.job_records import read_restarts
from pipelines.runs.step_metrics import MetricsLog
from pipelines.settings.load import parse

STEPS = 24
# So many that a worker is lost while there are steps to make.
MANY_STEPS = 240
EVERY = 30
CASES = {one.name: one for one in ENGINE_CASES}


def lost_case(name: str, *losses: tuple[Callable, int], always: bool = False):
    """An engine, how it loses workers one time after the other, and how many go on each time."""
    case = CASES[name]
    marks = (*case.marks, *(() if always else (pytest.mark.matrix,)))
    ways = "-".join(lose.__name__ for lose, _ in losses)
    return pytest.param(case, losses, marks=marks, id=f"{name}-{ways}")


@pytest.mark.parametrize(
    ("case", "losses"),
    [
        # A connection between ranks first, then executors: two runs' worth in the starts of one.
        lost_case("torch-ddp", (cut_between_ranks, 2), (take_executors, 1), always=True),
        lost_case("torch-ddp", (take_executors, 1)),
        lost_case("torch-ddp", (tell_to_end, 2)),
        lost_case("torch-ddp", (kill_the_one_that_saves, 2)),
        lost_case("torch-fsdp", (take_executors, 1)),
        lost_case("torch-fsdp", (tell_to_end, 2)),
        lost_case("deepspeed-zero3", (kill, 2)),
        lost_case("bigdl-torch", (take_executors, 1)),
        lost_case("bigdl", (take_executors, 1)),
        lost_case("local-torch", (kill_the_one_that_saves, 1)),
        lost_case("tensorflowonspark-lanes", (take_executors, 1)),
        lost_case("tensorflowonspark-spark", (kill, 2)),
        lost_case("horovod-torch", (cut_between_ranks, 2)),
        lost_case("horovod-torch", (stop, 2)),
        lost_case("horovod-torch", (kill_the_executor, 2)),
        lost_case("horovod-tensorflow", (kill, 2)),
        lost_case("horovod-tensorflow", (cut_between_ranks, 2)),
    ],
)
def test_a_run_loses_workers_and_not_a_step(
    spark, make_run, reference, monitors, monkeypatch, case: EngineCase, losses
):
    monkeypatch.setattr("pipelines.engines.base.RETURN_SECONDS", 10.0)
    settings = {"checkpoint_every": EVERY, "keep_checkpoints": MANY_STEPS, "feed": "memory"}
    run = make_run(MANY_STEPS, restarts=len(losses), **(settings | case.training))
    before, ports = started(), listening()
    ways = [lose for lose, _ in losses]
    with MetricsLog(run) as log:
        outcome = case.make().train(spark, run, losing(log, spark, ways, monitors))
    assert outcome.steps == MANY_STEPS
    assert [restart.workers for restart in outcome.restarts] == [left for _, left in losses]
    expected = reference(MANY_STEPS, reference_framework(case))
    # So many steps bring losses of a thousandth, of which rounding is a larger share.
    np.testing.assert_allclose(outcome.losses, expected, rtol=1e-3, atol=1e-4)
    check_log(run, outcome)
    assert read_restarts(run.run_folder) == list(outcome.restarts)
    steps = checkpoint_steps(run.run_folder)
    assert set(steps) >= set(range(0, MANY_STEPS + 1, EVERY))
    for lose, restart in zip(ways, outcome.restarts, strict=True):
        assert restart.engine == case.make().name
        assert restart.rank in (0, 1)
        assert restart.host
        assert restart.made >= restart.step
        if lose is tell_to_end:
            assert "SIGTERM" in restart.cause
            # The checkpoint of the moment at which it was told.
            assert restart.step in steps
            assert restart.step >= 3
    wait_until_gone(before, ports)


def losing(log, spark, ways, monitors):
    """A listener that has each attempt at a run lose a worker, in one of the ways in turn.

    It does so at the third step that it hears of. Runs of dllib have no monitor, and one loss.
    """
    seen, steps = 1, 0

    def listen(line):
        nonlocal seen, steps
        log.add(line)
        attempt = max(len(monitors), 1)
        seen, steps = attempt, (steps if attempt == seen else 0) + 1
        if steps == 3 and attempt <= len(ways):
            ways[attempt - 1](spark, monitors[-1] if monitors else None)

    return listen


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "lose", "workers"),
    [
        ("elephas-sync", kill, 2),
        ("elephas-async", take_executors, 1),
        ("tensorflowonspark-async", kill, 2),
    ],
)
def test_what_depends_on_the_workers_goes_on_too(
    spark, make_run, monitors, monkeypatch, name, lose, workers
):
    monkeypatch.setattr("pipelines.engines.base.RETURN_SECONDS", 10.0)
    case = CASES[name]
    run = make_run(MANY_STEPS, restarts=1, **({"checkpoint_every": EVERY} | case.training))
    with MetricsLog(run) as log:
        outcome = case.make().train(spark, run, losing(log, spark, [lose], monitors))
    assert outcome.steps == MANY_STEPS == len(outcome.losses)
    assert [restart.workers for restart in outcome.restarts] == [workers]
    assert np.mean(outcome.losses[-30:]) < 0.8 * np.mean(outcome.losses[:3])
    check_log(run, outcome)


def check_log(run, outcome):
    """``metrics.jsonl`` has each step once, in the order of time."""
    lines = (run.run_folder / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    assert [line["step"] for line in lines] == list(range(1, MANY_STEPS + 1))
    assert [line["loss"] for line in lines] == list(outcome.losses)
    seconds = [line["seconds"] for line in lines]
    assert seconds == sorted(seconds), "what the loss cost is a part of it"


def with_training(run, **settings):
    training = run.config.training.model_copy(update=settings)
    return dataclasses.replace(run, config=run.config.model_copy(update={"training": training}))


def test_what_is_left_of_a_run(make_run):
    run = with_training(make_run(STEPS), workers=4, granules_per_step=4)
    start = load_checkpoint(run.run_folder, 0)
    for step in (4, 8, 9):
        save_checkpoint(run.run_folder, dataclasses.replace(start, step=step), 9)
    torn = checkpoint_path(run.run_folder, 9) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    rest = rest_of(run, 9, 3)
    assert (rest.config.training.workers, rest.first_step, rest.last_step) == (2, 8, STEPS)
    assert rest.config.training.stall_seconds == 2 * run.config.training.stall_seconds
    # A checkpoint whose steps the driver has not heard of is not gone on from.
    rest = rest_of(run, 7, 9)
    assert (rest.config, rest.first_step) == (run.config, 4)
    assert rest_of(run, 3, 1).first_step == 0
    assert rest_of(run, 9, 0) is None
    # Each step of an asynchronous run is one worker's.
    alone = with_training(run, mode="async")
    assert rest_of(alone, 9, 3).config.training.workers == 3


def lost(began=True):
    return WorkerLostError("test", "gone", began=began, rank=1, host="host-1", lane=2)


class Scripted(Engine):
    """An engine whose parts end as they are told, on a cluster whose room is told too."""

    name = "test"

    def __init__(self, ends, room, any_workers=True):
        self.tried, self.asked = [], []
        self._ends, self._room, self._any = iter(ends), iter(room), any_workers

    def attempt(self, session, run, step_metrics):
        self.tried.append(run.config.training.workers)
        if (end := next(self._ends, None)) is not None:
            raise end
        return step_metrics.outcome()

    def workers(self, config):
        return config.training.workers

    def room(self, session, config, wanted, seconds):
        self.asked.append((wanted, seconds))
        return next(self._room)

    def with_any_workers(self, config):
        return self._any


@pytest.mark.parametrize(
    ("room", "ends", "tried"),
    [
        ([3, 2], [lost(), lost()], [4, 2, 2]),
        # A host with two workers is gone, of which Spark learns between two starts.
        ([4, 4, 2], [lost(), lost(began=False), lost(began=False)], [4, 4, 4, 2]),
        # Its machines come back before the next loss.
        ([1, 4], [lost(), lost()], [4, 1, 4]),
        # All of them are gone, and one comes back.
        ([0, 1], [lost()], [4, 1]),
    ],
)
def test_parts_of_a_run_fit_what_is_there(make_run, room, ends, tried):
    """The decisions alone: what the parts do is tried with real workers above."""
    run = with_training(make_run(STEPS), workers=4, granules_per_step=4, restarts=2)
    engine = Scripted(ends, room)
    outcome = engine.train(None, run, lambda line: None)
    assert engine.tried == tried
    assert [restart.workers for restart in outcome.restarts] == tried[1:]
    assert [one.cause for one in read_restarts(run.run_folder)] == ["gone"] * len(ends)
    assert all(re.fullmatch(r".*T.*\+00:00", one.time) for one in outcome.restarts)


@pytest.mark.parametrize(
    ("restarts", "ends", "room", "attempts"),
    [
        (0, [lost()], [], 1),
        (2, [lost(), lost(), lost()], [2, 2], 3),
        # A cluster that never had all workers ready is too small.
        (2, [lost(began=False)], [], 1),
        # No machine comes back.
        (2, [lost()], [0, 0], 1),
        (2, [EngineError("test", "its loss is no number")], [], 1),
    ],
)
def test_what_is_not_gone_on_with(make_run, restarts, ends, room, attempts):
    run = with_training(make_run(STEPS), workers=2, restarts=restarts)
    engine = Scripted(ends, room)
    with pytest.raises(EngineError) as caught:
        engine.train(None, run, lambda line: None)
    assert caught.value is ends[-1]
    assert len(engine.tried) == attempts


def test_a_later_start_is_tried_again_for_a_time(make_run, monkeypatch):
    run = with_training(make_run(STEPS), workers=2, restarts=1)
    monkeypatch.setattr("pipelines.engines.base.RECOVERY_SECONDS", -1.0)
    engine = Scripted([lost(), lost(began=False)], [2])
    with pytest.raises(WorkerLostError):
        engine.train(None, run, lambda line: None)
    assert len(engine.tried) == 2


def test_a_result_that_depends_on_the_workers_waits_for_all_of_them(make_run):
    run = with_training(make_run(STEPS), workers=2, restarts=1)
    engine = Scripted([lost()], [1, 2], any_workers=False)
    engine.train(None, run, lambda line: None)
    assert engine.tried == [2, 2]
    wait = run.config.spark.wait_seconds
    assert engine.asked[1] == (2, wait)
    engine = Scripted([lost()], [1, 1], any_workers=False)
    with pytest.raises(WorkerLostError):
        engine.train(None, run, lambda line: None)


def test_a_checkpoint_of_before_is_kept_for_a_restart():
    kept = [
        parse({"training": {"keep_checkpoints": 1, "restarts": n}}).training.kept_checkpoints
        for n in (0, 1)
    ]
    assert kept == [1, 2]


def test_the_earlier_word_is_read(caplog):
    assert parse({"training": {"elastic": True}}).training.restarts == 2
    assert "training.restarts" in caplog.text
    caplog.clear()
    assert parse({"training": {"elastic": False, "restarts": 1}}).training.restarts == 1
    assert caplog.text == ""
