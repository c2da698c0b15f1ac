"""Of the words' gradient only rows that a worker touched travel; the mean is the same."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from steppers import SPEC, STATIC, granule, stepper, work
from torch.nn.functional import embedding

from pipelines.models.weights import WORDS
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers.torch import WordGradient


class Pair:
    """Two workers of one process, each in a thread of its own; counts what they average."""

    def __init__(self) -> None:
        self.parts = {}
        self.barrier = threading.Barrier(2, timeout=60)
        self.averaged = []

    def everybodys(self, rank, value):
        self.parts[rank] = value
        self.barrier.wait()
        parts = [self.parts[0], self.parts[1]]
        self.barrier.wait()
        return parts


class OneOfTwo:
    workers = 2

    def __init__(self, rank: int, pair: Pair) -> None:
        self.rank = rank
        self._pair = pair

    def all_reduce_mean(self, tensors):
        own = [tensor.clone() for tensor in tensors]
        one, other = self._pair.everybodys(self.rank, own)
        if self.rank == 0:
            self._pair.averaged.append([tuple(tensor.shape) for tensor in own])
        return [(a + b).div_(2) for a, b in zip(one, other, strict=True)]

    def all_gather(self, tensor):
        return np.concatenate(self._pair.everybodys(self.rank, tensor))


class Dense(OneOfTwo):
    """Exchanges all rows, as if every worker had touched them."""

    def all_gather(self, tensor):
        return np.full_like(super().all_gather(tensor), 255)


def train_ranks(kind, spec, objective, steps=4):
    """Losses and last state of rank 0, and the shapes that were averaged."""
    pair = Pair()

    def worker(rank):
        each = stepper("torch", objective, collectives=kind(rank, pair), spec=spec)
        losses = [
            each.step(work(i, granule(4 * i + 2 * rank), granule(4 * i + 2 * rank + 1)), 1e-2)
            for i in range(steps)
        ]
        return losses, each.checkpoint(steps)

    with ThreadPoolExecutor(2) as pool:
        (losses, last), (other_losses, other) = pool.map(worker, (0, 1))
    assert losses == other_losses
    for name, value in last.weights.items():
        np.testing.assert_array_equal(other.weights[name], value, err_msg=name)
    return losses, last, pair.averaged


@pytest.mark.parametrize("spec", [SPEC, STATIC], ids=lambda spec: spec.kind)
def test_the_updates_are_those_of_the_whole_gradient_to_the_bit(spec, monkeypatch):
    few = {"negatives": "granule"}
    monkeypatch.setattr("steppers.VOCABULARY", 20)  # so that there are rows that nobody touches
    losses, last, shapes = train_ranks(OneOfTwo, spec, few)
    expected_losses, expected, whole = train_ranks(Dense, spec, few)
    assert losses == expected_losses
    for name, value in (expected.weights | expected.moments).items():
        np.testing.assert_array_equal((last.weights | last.moments)[name], value, err_msg=name)
    place = list(expected.weights).index(WORDS)
    assert [step[place][0] for step in whole] == [50] * 4
    assert all(0 < step[place][0] <= 21 for step in shapes)


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
