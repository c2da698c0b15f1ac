"""The learning rate over a run."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.runs.learning_rate import Horizon, learning_rate
from pipelines.settings import TrainingSettings

SCHEDULES = ["linear", "cosine", "constant"]


def settings(schedule="linear", warmup=0.1):
    return TrainingSettings(learning_rate=2.0, schedule=schedule, warmup=warmup)


def rate(step, steps, asked, *moved):
    """The rate of a run of so many steps, whose end was moved: ``(at step, to step)``."""
    horizons = [Horizon(step=at, last_step=to) for at, to in ((0, steps), *moved)]
    return learning_rate(step, horizons, asked)


@given(st.integers(1, 3000), st.sampled_from(SCHEDULES), st.floats(0, 0.9))
def test_it_rises_once_and_falls_once(steps, schedule, warmup):
    rates = [rate(step, steps, settings(schedule, warmup)) for step in range(steps)]
    top = rates.index(max(rates))
    assert 0 < max(rates) <= 2.0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_values_by_hand():
    assert rate(0, 100, settings()) == pytest.approx(0.2)
    assert rate(9, 100, settings()) == pytest.approx(2.0)
    assert rate(10, 100, settings()) == pytest.approx(2.0)
    assert rate(55, 100, settings()) == pytest.approx(1.0)
    assert rate(55, 100, settings("cosine")) == pytest.approx(1.0)
    assert rate(99, 100, settings()) == pytest.approx(2.0 / 90)
    assert rate(99, 100, settings("constant")) == 2.0


def test_values_by_hand_of_a_run_whose_end_was_moved():
    # On its way, where the rate was 1.0: a line from there to the new end.
    assert rate(55, 100, settings(), (55, 255)) == pytest.approx(1.0)
    assert rate(155, 100, settings(), (55, 255)) == pytest.approx(0.5)
    # At its end, where the rate was 0: a warm-up of 20 steps, and a line.
    assert rate(100, 100, settings(), (100, 300)) == pytest.approx(0.1)
    assert rate(119, 100, settings(), (100, 300)) == pytest.approx(2.0)
    assert rate(210, 100, settings(), (100, 300)) == pytest.approx(1.0)
    # In its warm-up, which goes on.
    assert rate(7, 100, settings(), (5, 1000)) == rate(7, 100, settings())
    assert rate(505, 100, settings(), (5, 1000)) == pytest.approx(1.0)


@given(
    st.integers(10, 400),
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 400)), max_size=4),
    st.sampled_from(SCHEDULES),
    st.floats(0.05, 0.5),
)
def test_no_rate_jumps_wherever_the_end_is_moved(steps, moves, schedule, warmup):
    """Nor does it change what was before."""
    asked, moved, step, last_step = settings(schedule, warmup), [], 0, steps
    for made, more in moves:
        before = [rate(one, steps, asked, *moved) for one in range(step)]
        step = min(step + made, last_step)
        last_step = step + more
        moved.append((step, last_step))
        assert before == [rate(one, steps, asked, *moved) for one in range(len(before))]
    rates = [rate(one, steps, asked, *moved) for one in range(last_step)]
    assert all(0 <= one <= 2.0 for one in rates)
    # A decay or a warm-up of the shortest of these runs changes it by so much at most.
    shortest = min(steps, *(to - at for at, to in moved)) if moved else steps
    # So does a decay from the top of a warm-up to an end that was moved nearer to it meanwhile.
    spans = [(0, steps), *moved]
    tops = [at + math.ceil(warmup * (to - at)) for at, to in spans]
    falls = [to - top for top in tops for _, to in spans if to > top]
    shortest_fall = min(shortest * (1 - warmup), *falls, shortest)
    steepest = 2.0 * max(1 / max(int(warmup * shortest), 1), 4 / max(shortest_fall, 1))
    assert all(abs(b - a) <= steepest + 1e-9 for a, b in pairwise(rates))
