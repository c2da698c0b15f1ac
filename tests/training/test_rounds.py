"""When rounds end, and that a state survives its travels."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import make_run, make_task

from pipelines.models.bert.spec import BertSpec
from pipelines.runs.checkpoint import Checkpoint, save_checkpoint
from pipelines.training.asynchronous import checkpoint_of, round_ends, state_of, train_in_rounds
from pipelines.training.steppers.base import StepWork

SPEC = BertSpec(vocabulary=5, layers=1, hidden=8, heads=2, intermediate=8, positions=8)


@given(st.integers(0, 40), st.integers(1, 80), st.integers(1, 12), st.integers(1, 30))
def test_a_resumed_run_has_the_rounds_of_the_whole_one(first, more, steps, every):
    last = first + more
    whole = list(round_ends(make_run(last, 0, round_steps=steps, checkpoint_every=every)))
    assert whole[-1] == last
    assert set(range(every, last, every)) <= set(whole)
    assert all(after - before <= steps for before, after in zip([0, *whole], whole, strict=False))
    # Runs go on from a checkpoint, which is the end of a round.
    first -= first % every
    resumed = list(round_ends(make_run(last, first, round_steps=steps, checkpoint_every=every)))
    assert resumed == [end for end in whole if end > first]


def test_a_state_is_its_checkpoint():
    weights = {"a": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    fresh = Checkpoint(0, SPEC, weights, {})
    state = state_of(fresh)
    assert list(state) == [f"{kind}/{name}" for kind in ("weights", "m", "v") for name in "ab"]
    again = checkpoint_of(state, 5, fresh)
    assert again.step == 5
    assert again.weights.keys() == weights.keys()
    assert again.moments.keys() == {"m/a", "m/b", "v/a", "v/b"}
    assert state_of(again).keys() == state.keys()


def test_a_loss_that_is_no_number_is_not_pushed(tmp_path):
    run = make_run(8, folder=tmp_path, round_steps=4)
    save_checkpoint(tmp_path, Checkpoint(0, SPEC, {"w": np.zeros(3, np.float32)}, {}), 9)
    stepper = SimpleNamespace(precision="fp32", gradient_norm=None, step=lambda *_: np.nan)
    rounds, pushed = (
        SimpleNamespace(pull=lambda end: {}, push=lambda *sent: pushed.append(sent)),
        [],
    )
    reporter = SimpleNamespace(ready=lambda: None, extra_checkpoint=None)
    feed = iter([StepWork(0, 0, [])])
    with pytest.raises(FloatingPointError, match=r"step 0 .*Lower training\.learning_rate"):
        train_in_rounds(make_task(run, 0), lambda *_: stepper, rounds, feed, reporter)
    assert not pushed
