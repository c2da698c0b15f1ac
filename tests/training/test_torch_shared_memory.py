"""Memory that workers of one host share: who gets it, and what they average in it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.training.collectives import torch_shared_memory
from pipelines.training.collectives.interfaces import SOCKETS_ONLY
from pipelines.training.collectives.torch_shared_memory import SharedMeans, _opened, shared_memory

TOKEN, SIZE = 12345, 4096


@pytest.fixture
def made():
    memory, file = torch_shared_memory._made(SIZE, TOKEN)
    yield memory, file
    os.close(file)


def test_only_memory_with_the_token_is_opened(made):
    _, file = made
    opened = _opened(os.getpid(), file, SIZE, TOKEN)
    opened[100:103] = b"abc"
    assert made[0][100:103] == b"abc"
    assert _opened(os.getpid(), file, SIZE, TOKEN + 1) is None
    assert _opened(os.getpid(), file, 2 * SIZE, TOKEN) is None, "it is too short"
    assert _opened(os.getpid(), -1, SIZE, TOKEN) is None, "rank 0 has none"
    assert _opened(os.getpid(), 10**6, SIZE, TOKEN) is None


def test_it_has_no_name_that_stays(made):
    assert str(Path(f"/proc/self/fd/{made[1]}").readlink()).startswith("/memfd:")


def test_workers_of_other_hosts_have_none(monkeypatch):
    asked = []

    def gather(numbers):
        asked.append(numbers)
        return np.concatenate([numbers, numbers + 1])

    assert shared_memory(0, 2, gather) is None
    assert len(asked) == 1, "nothing was made"
    monkeypatch.setenv(SOCKETS_ONLY, "1")
    assert shared_memory(0, 1, lambda numbers: numbers) is None


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_several_exchanges_at_once_are_averaged_in_turns(workers, monkeypatch):
    monkeypatch.setattr(torch_shared_memory, "AREA_BYTES", SIZE)
    monkeypatch.setattr(torch_shared_memory, "_BLOCK", 100)
    memory, file = torch_shared_memory._made(SIZE * (workers + 1), TOKEN)
    os.close(file)
    barrier = threading.Barrier(workers, timeout=60)
    generator = np.random.default_rng(workers)
    shapes = ((3,), (), (40, 70), (1,), (17, 9), (0, 4))
    arrays = [
        [generator.normal(size=shape).astype(np.float32) for shape in shapes]
        for _ in range(workers)
    ]

    def worker(rank: int) -> list:
        means = SharedMeans(memory, rank, workers, barrier.wait)
        found = []
        for _ in range(3):
            tensors = [torch.from_numpy(array.copy()) for array in map(np.asarray, arrays[rank])]
            waits = [means.begin(tensors[:2]), means.begin(tensors[2:])]
            found.append([mean.numpy() for wait in waits for mean in wait()])
        return found

    with ThreadPoolExecutor(workers) as pool:
        everybody = list(pool.map(worker, range(workers)))
    expected = []
    for of_ranks in zip(*arrays, strict=True):
        total = of_ranks[0]
        for part in of_ranks[1:]:
            total = total + part
        expected.append(total / np.float32(workers))
    for found in everybody:
        for of_step in found:
            for mean, wanted in zip(of_step, expected, strict=True):
                np.testing.assert_array_equal(mean, wanted)
