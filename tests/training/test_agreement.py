"""What the comparison of workers' states notices, and what it lets pass."""

from dataclasses import replace

import numpy as np
import pytest
from steppers import granule, stepper, work

from pipelines.training.collectives.base import check_agreement


class Together:
    """The exchange of workers that are all here: gathers what they were made with."""

    def __init__(self, *states):
        self.rank, self.workers = 0, len(states)
        self._own = []
        self._states = states

    def all_gather(self, numbers):
        self._own.append(numbers)
        if len(self._own) == 1:
            for state in self._states:
                check_agreement(state, self)
            return np.concatenate(self._own[1:])
        return numbers


def state(number, rate=1e-9):
    each = stepper("torch")
    each.step(work(0, granule(number)), rate)
    return each.checkpoint(1)


def test_equal_states_agree_and_rounding_is_no_difference():
    ours = state(1)
    rounded = {name: value * np.float32(1 + 2e-6) for name, value in ours.moments.items()}
    check_agreement(ours, Together(ours, replace(ours, moments=rounded)))


def test_gradients_that_were_not_averaged_are_noticed_at_any_learning_rate():
    with pytest.raises(RuntimeError, match=r"after step 1 the state of ranks \[1\] differs"):
        check_agreement(state(1), Together(state(1), state(2)))


def test_other_weights_are_noticed_and_named():
    ours = state(1)
    name = "embeddings.LayerNorm.bias"
    other = replace(ours, weights=ours.weights | {name: ours.weights[name] + 1})
    with pytest.raises(RuntimeError, match=rf"ranks \[2\] .* first in {name}"):
        check_agreement(ours, Together(ours, ours, other))


def test_a_state_that_is_not_finite_is_no_disagreement():
    ours = state(1)
    name = "embeddings.LayerNorm.bias"
    grown = np.full_like(ours.weights[name], np.inf)
    grown[::2] = -np.inf
    diverged = replace(ours, weights=ours.weights | {name: grown})
    told = rf"after step 1 {name} holds infinity or NaN\. Lower training\.learning_rate"
    with pytest.raises(FloatingPointError, match=told):
        check_agreement(diverged, Together(diverged, diverged))
