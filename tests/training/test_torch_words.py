"""Of the words' gradient only rows that a worker touched travel; the mean is the same."""

import numpy as np
import pytest
import torch
from steppers import SPEC, STATIC, granule, stepper, work
from thread_pair import OneOfTwo, run_both
from torch.nn.functional import embedding

from pipelines.lanes.files import Side
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.torch_exchange import WordGradient


class Dense(OneOfTwo):
    """Exchanges all rows, as if every worker had touched them."""

    def all_gather(self, tensor):
        gathered = super().all_gather(tensor)
        return np.full_like(gathered, 255) if tensor.dtype == np.uint8 else gathered


def train_ranks(kind, spec, objective, steps=4):
    """Losses and last state of rank 0, and the shapes that were averaged."""

    def worker(collectives):
        each = stepper("torch", objective, collectives=collectives, spec=spec)
        firsts = [4 * i + 2 * collectives.rank for i in range(steps)]
        losses = [
            each.step(work(i, granule(first), granule(first + 1)), 1e-2)
            for i, first in enumerate(firsts)
        ]
        return losses, each.checkpoint(steps)

    ((losses, last), (other_losses, other)), meeting = run_both(worker, kind)
    assert losses == other_losses
    for name, value in last.weights.items():
        np.testing.assert_array_equal(other.weights[name], value, err_msg=name)
    return losses, last, meeting.averaged


@pytest.mark.parametrize("spec", [SPEC, STATIC], ids=lambda spec: spec.kind)
def test_the_updates_are_those_of_the_whole_gradient_to_the_bit(spec, monkeypatch):
    few = {"negatives": "granule"}
    monkeypatch.setattr("steppers.VOCABULARY", 20)  # so that there are rows that nobody touches
    losses, last, shapes = train_ranks(OneOfTwo, spec, few)
    expected_losses, expected, whole = train_ranks(Dense, spec, few)
    assert losses == expected_losses
    for name, value in (expected.weights | expected.moments).items():
        np.testing.assert_array_equal((last.weights | last.moments)[name], value, err_msg=name)
    assert rows_of(whole) == [50] * 4
    assert len(rows_of(shapes)) == 4
    assert all(0 < rows <= 21 for rows in rows_of(shapes))


def rows_of(averaged):
    """How many rows of the words travelled in each step, with its loss."""
    return [shapes[0][0] for shapes in averaged if shapes[-1] == ()]


def test_a_dense_gradient_counts_as_all_rows():
    words = torch.zeros(9, 2, requires_grad=True)
    gradient = WordGradient(words)
    gradient.begin()
    (embedding(torch.tensor([1, 7, 7]), words, sparse=True) + 0).sum().backward()
    assert gradient.rows(SingleProcess()).tolist() == [1, 7]
    words.sum().backward()
    assert gradient.rows(SingleProcess()).tolist() == list(range(9))
    gradient.begin()
    assert not words.grad.any()
    assert gradient.rows(SingleProcess()).tolist() == []


def test_the_rows_of_texts_are_those_of_their_words():
    words = torch.zeros(9, 2, requires_grad=True)
    gradient = WordGradient(words)
    gradient.begin()
    sides = [Side(np.array([[3, 8, 0], [3, 1, 5]]), np.array([2, 3]))]
    assert gradient.begin_rows(sides, SingleProcess())().tolist() == [1, 3, 5, 8]
    embedding(torch.tensor([8, 1]), words, sparse=True).sum().backward()
    assert gradient.is_within(sides)
    embedding(torch.tensor([0]), words, sparse=True).sum().backward()
    assert not gradient.is_within(sides)


def test_rows_of_the_other_worker_are_zero_in_the_next_step():
    words = torch.zeros(9, 2, requires_grad=True)
    gradient = WordGradient(words)
    gradient.begin()
    embedding(torch.tensor([1]), words, sparse=True).sum().backward()
    rows = torch.tensor([1, 4])
    whole = gradient.put(rows, torch.ones(2, 2))
    assert whole.sum(1).tolist() == [0, 2, 0, 0, 2, 0, 0, 0, 0]
    gradient.begin()
    assert not words.grad.any()
