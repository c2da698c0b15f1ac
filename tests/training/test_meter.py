"""What a worker tells of its time, on a clock by hand."""

from types import SimpleNamespace

import pytest

from pipelines.training import exchange, loop
from pipelines.training.exchange import Alone, Timed
from pipelines.training.feed import StepWork
from pipelines.training.loop import Meter


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def passes(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(loop, "time", made)
    monkeypatch.setattr(exchange, "time", made)
    return made


@pytest.fixture
def records() -> list:
    return []


@pytest.fixture
def meter(clock, records) -> Meter:
    return Meter(SimpleNamespace(step_done=records.append))


def feed(clock: Clock, steps: int):
    for index in range(steps):
        clock.passes(0.5)
        yield StepWork(index, 0, [])


def test_the_parts_of_a_step_and_what_comes_after_it(clock, records, meter) -> None:
    stepper = SimpleNamespace(exchange_seconds=7.0)
    for work in meter.timed(feed(clock, 2)):
        with meter.step(stepper):
            clock.passes(3.0)
            stepper.exchange_seconds += 1.0
        meter.step_done(work, 1.0, 0.1)
        clock.passes(0.25)  # a checkpoint
    first, second = records
    assert (first.waited, first.worked, first.communicated, first.took) == (0.5, 3.0, 1.0, 3.5)
    assert (second.waited, second.worked, second.communicated, second.took) == (0.5, 3.0, 1.0, 3.75)
    assert (first.seconds, second.seconds) == (3.5, 7.25)


def test_asynchronous_steps(clock, records, meter) -> None:
    (work,) = meter.timed(feed(clock, 1))
    for part, seconds in ((meter.communication, 1.0), (meter.arithmetic, 2.0)) * 2:
        with part():
            clock.passes(seconds)
    meter.step_done(work, 1.0, 0.1)
    assert (records[0].worked, records[0].communicated) == (6.0, 2.0)


def test_a_stepper_that_cannot_tell_them_apart(clock, records, meter) -> None:
    works = meter.timed(feed(clock, 2))
    for stepper in (SimpleNamespace(exchange_seconds=None), SimpleNamespace(exchange_seconds=0.0)):
        work = next(works)
        with meter.step(stepper):
            clock.passes(2.0)
        meter.step_done(work, 1.0, 0.1)
    assert [(one.worked, one.communicated) for one in records] == [(2.0, None), (2.0, 0.0)]


def test_a_timed_exchange_gives_what_the_other_gives(clock) -> None:
    class Slow(Alone):
        rank, workers = 2, 5

        def mean(self, tensors):
            clock.passes(1.5)
            return super().mean(tensors)

        def gather(self, tensor):
            clock.passes(0.25)
            return super().gather(tensor)

    timed = Timed(Slow())
    assert (timed.rank, timed.workers) == (2, 5)
    assert timed.mean((1, 2)) == [1, 2]
    assert timed.gather("all") == "all"
    assert timed.seconds == 1.75
