"""Attempts on a run: what an earlier one writes late counts for nothing, whenever it writes it."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from object_stores import Bucket
from planned_runs import make_run, make_task
from steppers import SPEC, keep_small_numbers

from pipelines.errors import PipelineError
from pipelines.files import storage
from pipelines.files.owners import check_own
from pipelines.files.run_folder import RunFolder
from pipelines.models.weights import random_weights
from pipelines.runs.attempts import (
    SupersededError,
    accepted_checkpoints,
    begin_attempt,
    checkpoint_name,
    fenced,
    read_attempts,
)
from pipelines.runs.checkpoint import (
    Checkpoint,
    checkpoint_steps,
    load_checkpoint,
    newest_whole_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    upload_checkpoint,
    write_files,
)
from pipelines.runs.step_metrics import MetricsLog
from pipelines.training.loop import run_worker

WEIGHTS = random_weights(SPEC, 3)


def state(step: int, shift: float = 0.0) -> Checkpoint:
    return Checkpoint(step, SPEC, {name: value + shift for name, value in WEIGHTS.items()}, {})


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_late_checkpoint_of_an_earlier_attempt_counts_for_nothing(tmp_path):
    first = begin_attempt(tmp_path, None)
    for step in (0, 10):
        save_checkpoint(tmp_path, state(step), 9, attempt=first)
    second = begin_attempt(tmp_path, 10)
    # Of a worker that has not heard of it: a step that the second is still to make, and one that
    # it has made already, by other weights.
    save_checkpoint(tmp_path, state(20, 1.0), 9, attempt=first)
    assert (first, second, checkpoint_steps(tmp_path)) == (1, 2, [0, 10])
    save_checkpoint(tmp_path, state(20), 9, attempt=second)
    save_checkpoint(tmp_path, state(20, 1.0), 9, attempt=first)
    save_checkpoint(tmp_path, state(30, 1.0), 9, attempt=first)
    assert checkpoint_steps(tmp_path) == [0, 10, newest_whole_checkpoint(tmp_path)] == [0, 10, 20]
    for name, value in load_checkpoint(tmp_path, 20).weights.items():
        np.testing.assert_array_equal(value, WEIGHTS[name])
    begin_attempt(tmp_path, 20)
    names = sorted(path.name for path in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000000", "step-00000010", "step-00000020-attempt-2"]


def test_the_same_holds_in_an_object_store(any_bucket: Bucket, tmp_path):
    run = any_bucket.root / "run"
    for name, step, shift in (("10", 10, 0.0), ("20", 20, 1.0), ("20 again", 20, 0.0)):
        write_files(made(tmp_path / name), state(step, shift))
    first = begin_attempt(run, None)
    upload_checkpoint(str(tmp_path / "10"), run, 10, 9, attempt=first)
    second = begin_attempt(run, 10)
    upload_checkpoint(str(tmp_path / "20"), run, 20, 9, attempt=first)
    assert checkpoint_steps(run) == [10]
    with fenced(run, first), pytest.raises(SupersededError):
        upload_checkpoint(str(tmp_path / "20"), run, 20, 9, attempt=first)
    with fenced(run, second):
        upload_checkpoint(str(tmp_path / "20 again"), run, 20, 9, attempt=second)
    assert newest_whole_checkpoint(run) == 20
    assert accepted_checkpoints(run)[20].name == "step-00000020-attempt-2"


def test_nothing_is_written_for_an_attempt_that_was_superseded(tmp_path):
    first = begin_attempt(tmp_path, None)
    for step in (0, 5):
        save_checkpoint(tmp_path, state(step), 9, attempt=first)
    run = make_run(4, folder=tmp_path)
    line = {"step": 1, "loss": 1.0, "examples_per_second": 1.0}
    with fenced(tmp_path, first), MetricsLog(run) as log:
        log.add(line)
        begin_attempt_elsewhere(tmp_path, 5)
        refused = pytest.raises(SupersededError, match="attempt 2 on the run has begun, so ")
        with refused:
            log.add(line | {"step": 2})
        with refused:
            save_checkpoint(tmp_path, state(10), 9, attempt=first)
        with refused, storage.built_folder(tmp_path / "model") as folder:
            (folder / "weights").write_text("late")
        with refused:
            storage.write_json(RunFolder(tmp_path).metrics, {})
        with refused:
            prune_checkpoints(tmp_path, 5, 1)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == [
        *("attempts", "checkpoints", "metrics.jsonl")
    ]
    assert checkpoint_steps(tmp_path) == [0, 5]
    storage.write_json(RunFolder(tmp_path).metrics, {})  # By the one that has the run.


def begin_attempt_elsewhere(folder: Path, first_step: int) -> int:
    """As another driver does: this process does not learn of it."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(begin_attempt, (folder, first_step))


def test_a_worker_of_an_earlier_attempt_is_refused_by_itself(tmp_path, monkeypatch):
    begin_attempt(tmp_path, None)
    told = []

    class Heard:
        def __init__(self, task):
            self.failed = lambda error, peer_lost: told.append(error)

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    def late(task, *_):
        begin_attempt_elsewhere(tmp_path, None)
        save_checkpoint(tmp_path, state(10), 9, attempt=task.run.attempt)

    monkeypatch.setattr("pipelines.training.loop.Reporter", Heard)
    task = make_task(make_run(4, folder=tmp_path), 0)
    try:
        assert not run_worker(task, feed=lambda: iter(()), loop=late, stepper="torch")
    finally:
        keep_small_numbers()
    assert [type(error) for error in told] == [SupersededError]
    assert checkpoint_steps(tmp_path) == []


def test_a_run_of_an_earlier_release_goes_on(tmp_path):
    for step in (0, 10):
        save_checkpoint(tmp_path, state(step), 9)
    assert begin_attempt(tmp_path, 10) == 2
    save_checkpoint(tmp_path, state(20), 9)  # Of a worker of then.
    assert checkpoint_steps(tmp_path) == [0, 10]


def test_a_checkpoint_that_another_attempt_took_is_not_gone_on_from(tmp_path):
    first = begin_attempt(tmp_path, None)
    save_checkpoint(tmp_path, state(0), 9, attempt=first)
    begin_attempt(tmp_path, 0)
    with pytest.raises(PipelineError, match="attempt"):
        begin_attempt(tmp_path, 10)


def begin_at_once(folder: Path, start, told) -> None:
    start.wait()
    told.put(begin_attempt(folder, None))


def test_of_several_that_begin_at_once_each_has_a_number_of_its_own(tmp_path):
    context = multiprocessing.get_context("fork")
    start, told = context.Barrier(6), context.Queue()
    drivers = [
        context.Process(target=begin_at_once, args=(tmp_path, start, told)) for _ in range(6)
    ]
    for driver in drivers:
        driver.start()
    numbers = sorted(told.get(timeout=60) for _ in drivers)
    for driver in drivers:
        driver.join(60)
    assert numbers == [1, 2, 3, 4, 5, 6]
    for number in numbers[:-1]:
        with pytest.raises(SupersededError), fenced(tmp_path, number):
            check_own(tmp_path / "late")
    with fenced(tmp_path, numbers[-1]):
        check_own(tmp_path / "in time")


@dataclass
class World:
    """A run folder, and what was really written there, and when."""

    folder: Path
    begun: list[int] = field(default_factory=list)
    allowed: dict[str, bool] = field(default_factory=dict)

    def publish(self, attempt: int, step: int) -> None:
        """Makes a checkpoint appear, by a writer that looks for nothing."""
        path = RunFolder(self.folder).checkpoints / checkpoint_name(step, attempt)
        path.mkdir(parents=True, exist_ok=True)
        # One that was there in time stays so, whatever comes late.
        in_time = attempt == max(self.begun)
        self.allowed[path.name] = self.allowed.get(path.name, False) or in_time

    def begin(self) -> None:
        there = accepted_checkpoints(self.folder)
        self.begun.append(begin_attempt(self.folder, max(there, default=None)))

    def begin_and_die(self, written: int) -> None:
        """A driver that is killed while it writes the file of its attempt."""
        self.begin()
        path = RunFolder(self.folder).attempts / f"{self.begun.pop():08d}.json"
        path.write_bytes(path.read_bytes()[:written])


ACTS = st.one_of(
    st.tuples(st.just("begin")),
    st.tuples(st.just("die"), st.integers(0, 40)),
    st.tuples(st.just("publish"), st.integers(0, 5), st.integers(0, 6)),
)


@settings(max_examples=60)
@given(st.lists(ACTS, max_size=25))
def test_what_counts_was_written_before_a_later_attempt_began(acts):
    """In whatever order drivers begin, and die of it, and the writers of all of them write."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.begin()
        for kind, *values in acts:
            if kind == "publish":
                age, step = values
                world.publish(world.begun[-1 - min(age, len(world.begun) - 1)], step)
            elif kind == "die":
                world.begin_and_die(*values)
            else:
                world.begin()
            counting = [path.name for path in accepted_checkpoints(world.folder).values()]
            assert all(world.allowed[name] for name in counting), counting
            known = read_attempts(world.folder)
            assert known.newest >= known.basis == world.begun[-1]
