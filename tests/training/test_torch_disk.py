"""Tensors in a file that nobody else sees."""

import errno
import os
import tempfile

import pytest
import torch

from pipelines.errors import InputError
from pipelines.training.steppers.sharded import DiskTensors


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_numbers_stay_when_memory_is_given_back(folder):
    sizes = [3, 0, 100_000, 1]
    disk = DiskTensors(sizes)
    tensors = [disk.zeros(size) for size in sizes]
    assert [len(tensor) for tensor in tensors] == sizes
    assert not any(tensor.any() for tensor in tensors)
    for number, tensor in enumerate(tensors, 1):
        tensor.fill_(number)
    disk.let_go()
    for number, tensor in enumerate(tensors, 1):
        assert torch.equal(tensor, torch.full_like(tensor, number))
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_refused_by_name(monkeypatch):
    def refuse(*of_file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(InputError, match=r"training\.offload: .* has no room for .* GB of moments"):
        DiskTensors([10])
