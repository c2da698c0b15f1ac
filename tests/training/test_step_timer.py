"""What a worker tells of its time, on a clock by hand."""

from types import SimpleNamespace

import pytest

from pipelines.training import loop
from pipelines.training.collectives import base as collectives
from pipelines.training.collectives.base import SingleProcess, TimedCollectives
from pipelines.training.loop import StepTimer
from pipelines.training.steppers.base import StepWork


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    perf_counter = process_time = monotonic


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    monkeypatch.setattr(collectives, "time", made)
    return made


@pytest.fixture
def records() -> list:
    return []


@pytest.fixture
def timer(clock, records) -> StepTimer:
    return StepTimer(SimpleNamespace(step_done=records.append))


def feed(clock: Clock, steps: int):
    for index in range(steps):
        clock.passes(0.5)
        yield StepWork(index, 0, [])


def test_the_parts_of_a_step_and_what_comes_after_it(clock, records, timer) -> None:
    stepper = SimpleNamespace(exchange_seconds=7.0)
    for work in timer.timed(feed(clock, 2)):
        with timer.step(stepper):
            clock.passes(3.0)
            stepper.exchange_seconds += 1.0
        timer.step_done(work, 1.0, 0.1, 2.5)
        clock.passes(0.25)  # a checkpoint
    first, second = records
    assert (
        first.data_seconds,
        first.compute_seconds,
        first.communication_seconds,
        first.step_seconds,
    ) == (0.5, 3.0, 1.0, 3.5)
    assert (
        second.data_seconds,
        second.compute_seconds,
        second.communication_seconds,
        second.step_seconds,
    ) == (0.5, 3.0, 1.0, 3.75)
    assert (first.seconds, second.seconds) == (3.5, 7.25)
    # The clock of this test is that of the CPU too.
    assert (first.cpu_seconds, second.cpu_seconds) == (3.5, 3.75)
    assert first.gradient_norm == 2.5


def test_asynchronous_steps(clock, records, timer) -> None:
    (work,) = timer.timed(feed(clock, 1))
    for part, seconds in ((timer.communication, 1.0), (timer.arithmetic, 2.0)) * 2:
        with part():
            clock.passes(seconds)
    timer.step_done(work, 1.0, 0.1, 2.5)
    assert (records[0].compute_seconds, records[0].communication_seconds) == (6.0, 2.0)


def test_a_stepper_that_cannot_tell_them_apart(clock, records, timer) -> None:
    works = timer.timed(feed(clock, 2))
    for stepper in (SimpleNamespace(exchange_seconds=None), SimpleNamespace(exchange_seconds=0.0)):
        work = next(works)
        with timer.step(stepper):
            clock.passes(2.0)
        timer.step_done(work, 1.0, 0.1, 2.5)
    assert [(one.compute_seconds, one.communication_seconds) for one in records] == [
        (2.0, None),
        (2.0, 0.0),
    ]


def test_a_timed_exchange_gives_what_the_other_gives(clock) -> None:
    class Slow(SingleProcess):
        rank, workers = 2, 5

        def all_reduce_mean(self, tensors):
            clock.passes(1.5)
            return super().all_reduce_mean(tensors)

        def all_gather(self, tensor):
            clock.passes(0.25)
            return super().all_gather(tensor)

        def reduce_scatter(self, tensor):
            clock.passes(0.5)
            return super().reduce_scatter(tensor)

    timed = TimedCollectives(Slow())
    assert (timed.rank, timed.workers) == (2, 5)
    assert timed.all_reduce_mean((1, 2)) == [1, 2]
    assert timed.all_gather("all") == "all"
    assert timed.reduce_scatter("sum") == "sum"
    assert timed.seconds == 2.25
