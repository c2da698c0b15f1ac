"""The learning rate over a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.settings import TrainingSettings
from pipelines.training.schedule import learning_rate


def settings(schedule="linear", warmup=0.1):
    return TrainingSettings(learning_rate=2.0, schedule=schedule, warmup=warmup)


@given(st.integers(1, 3000), st.sampled_from(["linear", "cosine", "constant"]), st.floats(0, 0.9))
def test_it_rises_once_and_falls_once(steps, schedule, warmup):
    rates = [learning_rate(step, steps, settings(schedule, warmup)) for step in range(steps)]
    top = rates.index(max(rates))
    assert 0 < max(rates) <= 2.0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_values_by_hand():
    assert learning_rate(0, 100, settings()) == pytest.approx(0.2)
    assert learning_rate(9, 100, settings()) == pytest.approx(2.0)
    assert learning_rate(10, 100, settings()) == pytest.approx(2.0)
    assert learning_rate(55, 100, settings()) == pytest.approx(1.0)
    assert learning_rate(55, 100, settings("cosine")) == pytest.approx(1.0)
    assert learning_rate(99, 100, settings()) == pytest.approx(2.0 / 90)
    assert learning_rate(99, 100, settings("constant")) == 2.0
