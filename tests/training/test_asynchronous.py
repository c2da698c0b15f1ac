"""Who may begin which step, and what a checkpoint holds, with parameters in this process."""

import contextlib
import dataclasses
import itertools
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import make_run, make_task

from pipelines.models.bert.spec import BertSpec
from pipelines.runs.checkpoint import Checkpoint, checkpoint_steps, load_checkpoint, save_checkpoint
from pipelines.training.asynchronous import Progress, oldest_needed, train_asynchronously
from pipelines.training.steppers.base import StepWork

SPEC = BertSpec(vocabulary=5, layers=1, hidden=8, heads=2, intermediate=8, positions=8)


class Shared:
    """Parameters that count their updates: a weight's value is how many it has had."""

    def __init__(self, run):
        self.run, self.lock = run, threading.Lock()
        self.version = run.first_step
        self.saved = run.first_step
        self.applied: set[int] = set(range(run.first_step))
        self.seen: dict[int, set[int]] = {}

    def pull(self):
        with self.lock:
            self.pulled = set(self.applied)
            return {"w": np.full(3, self.version, np.float32)}, self.version

    def push(self, step, gradients, learning_rate):
        with self.lock:
            self.version += 1
            self.applied.add(step)
            return self.version

    def progress(self):
        with self.lock:
            contiguous = next(n for n in range(10_000) if n not in self.applied)
            return Progress(applied=contiguous, saved=self.saved)

    def state(self):
        with self.lock:
            return {"w": np.full(3, self.version, np.float32)}, {"m/w": np.zeros(3, np.float32)}

    def mark_saved(self, step):
        with self.lock:
            self.saved = max(self.saved, step)


class Slow:
    """Computes nothing, and notes which steps had been applied when it began."""

    precision = "fp32"
    gradient_norm = None

    def __init__(self, shared, rank):
        self.shared, self.rank = shared, rank

    def gradients(self, work, weights):
        with self.shared.lock:
            self.shared.seen[work.index] = set(self.shared.applied)
        time.sleep(0.003 * (1 + self.rank))
        return 1.0, {}


class Silent:
    waiting = staticmethod(contextlib.nullcontext)

    def __init__(self):
        self.records = []

    def ready(self):
        pass

    def step_done(self, record):
        self.records.append(record)


def train(run, order=None):
    """All workers of a run, each on a thread.

    Args:
        run: The run.
        order: Whose steps each of them makes: Spark feeds a partition to any worker.
    """
    shared, reporters = Shared(run), []
    start = Checkpoint(run.first_step, SPEC, {"w": np.zeros(3, np.float32)}, {})
    save_checkpoint(run.run_folder, start, 99)

    def work(rank):
        task, reporter = make_task(run, rank), Silent()
        reporters.append(reporter)
        fed = dataclasses.replace(task, rank=order[rank]) if order else task
        feed = (StepWork(step.index, step.epoch, []) for step, _ in fed.steps())
        train_asynchronously(task, lambda *_: Slow(shared, rank), shared, feed, reporter)

    workers = run.config.training.workers
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return shared, [record for reporter in reporters for record in reporter.records]


@pytest.mark.parametrize("bound", [0, 1, 4, None])
@pytest.mark.parametrize("first", [0, 7])
def test_no_step_begins_before_those_that_it_waits_for(tmp_path, bound, first):
    run = make_run(
        40, first, tmp_path, workers=3, mode="async", max_staleness=bound, checkpoint_every=10
    )
    shared, records = train(run)
    assert sorted(record.step for record in records) == list(range(first, 40))
    for step, applied in shared.seen.items():
        assert applied >= set(range(oldest_needed(run, step)))
    most = max(record.staleness for record in records)
    if bound is not None:
        assert most <= 2 * bound
    else:
        assert most > 0, "three workers that never wait overlap"


def test_a_checkpoint_holds_exactly_the_steps_before_it(tmp_path):
    run = make_run(35, 0, tmp_path, workers=3, mode="async", checkpoint_every=10)
    run = type(run)(**(vars(run) | {"config": with_kept(run.config)}))
    train(run)
    assert checkpoint_steps(tmp_path) == [0, 10, 20, 30, 35]
    for step in (10, 20, 30, 35):
        assert load_checkpoint(tmp_path, step).weights["w"][0] == step


def with_kept(config):
    training = config.training.model_copy(update={"keep_checkpoints": 99})
    return config.model_copy(update={"training": training})


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize(("every", "first", "last"), [(1, 0, 8), (2, 5, 12), (7, 0, 20), (5, 0, 2)])
def test_whoever_makes_a_step_nobody_waits_for_ever(tmp_path, order, every, first, last):
    run = make_run(last, first, tmp_path, workers=3, mode="async", checkpoint_every=every)
    run = type(run)(**(vars(run) | {"config": with_kept(run.config)}))
    _, records = train(run, order)
    assert sorted(record.step for record in records) == list(range(first, last))
    fences = {step for step in range(first, last) if step % every == 0}
    assert checkpoint_steps(tmp_path) == sorted({first, last} | fences)


def test_more_checkpoints_than_steps_of_a_worker(tmp_path):
    run = make_run(9, 0, tmp_path, workers=4, mode="async", checkpoint_every=1)
    run = type(run)(**(vars(run) | {"config": with_kept(run.config)}))
    train(run)
    assert checkpoint_steps(tmp_path) == list(range(10))


@given(st.integers(0, 200), st.integers(0, 50), st.integers(1, 60), st.none() | st.integers(0, 70))
def test_a_step_waits_for_earlier_ones_alone(step, first, every, bound):
    step += first
    run = make_run(step + 1, first, mode="async", checkpoint_every=every, max_staleness=bound)
    assert first <= oldest_needed(run, step) <= step


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_workers_granules_are_those_of_the_plan(mode, workers):
    run = make_run(30, 4, mode=mode, workers=workers)
    made = {}
    for rank in range(workers):
        for step, granules in make_task(run, rank).steps():
            made.setdefault(step.index, []).extend(granules)
    plan = {step.index: list(step.granules) for step in run.plan.steps(4, 30)}
    assert made == plan


@pytest.mark.slow
def test_a_worker_that_waits_for_a_slow_one_is_no_failure(tmp_path, monkeypatch):
    run = make_run(16, 0, tmp_path, mode="async", stall_seconds=5)
    training = run.config.training.model_copy(update={"stall_seconds": 1.5})
    config = run.config.model_copy(update={"training": training})
    # The second worker takes 0.3 s a step, so the first waits for it more than 1.5 s at the end.
    monkeypatch.setattr(Slow, "gradients", lambda slow, *_: (time.sleep(0.3 * slow.rank), {}))
    monkeypatch.setattr("pipelines.training.asynchronous.check_finite", lambda *_: None)
    _, records = train(type(run)(**(vars(run) | {"config": config})))
    assert len(records) == 16


def test_a_wait_has_a_deadline(tmp_path):
    run = make_run(10, 0, tmp_path, mode="async", max_staleness=0, stall_seconds=5)
    training = run.config.training.model_copy(update={"stall_seconds": 0.2})
    config = run.config.model_copy(update={"training": training})
    run = type(run)(**(vars(run) | {"config": config}))
    start = Checkpoint(0, SPEC, {"w": np.zeros(3, np.float32)}, {})
    save_checkpoint(tmp_path, start, 9)
    task, shared = make_task(run, 1), Shared(run)
    feed = (StepWork(step.index, step.epoch, []) for step, _ in task.steps())
    with pytest.raises(TimeoutError, match=r"training\.stall_seconds"):
        train_asynchronously(task, lambda *_: Slow(shared, 1), shared, feed, Silent())


def test_a_loss_that_is_no_number_is_not_pushed(tmp_path, monkeypatch):
    run = make_run(4, 0, tmp_path, workers=1, mode="async")
    save_checkpoint(tmp_path, Checkpoint(0, SPEC, {"w": np.zeros(3, np.float32)}, {}), 9)
    monkeypatch.setattr(Slow, "gradients", lambda *_: (np.nan, {}))
    shared, task = Shared(run), make_task(run, 0)
    feed = (StepWork(step.index, step.epoch, []) for step, _ in task.steps())
    with pytest.raises(FloatingPointError, match=r"step 0 .*Lower training\.learning_rate"):
        train_asynchronously(task, lambda *_: Slow(shared, 0), shared, feed, Silent())
    assert shared.version == 0
