"""That a worker without memory says so in one line, whatever library it happened in."""

from __future__ import annotations

import pytest
import torch

from pipelines.training.control.reporter import memory_failure

LARGE = 1 << 50


def _check(error: BaseException, words: str) -> None:
    line = memory_failure(error)
    assert line is not None
    assert "\n" not in line
    assert words in line
    assert "training.tokens_per_forward" in line


def test_what_torch_raises_is_one_line_with_the_remedy():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(LARGE)
    _check(raised.value, "can't allocate memory")


@pytest.mark.slow
def test_what_tensorflow_raises_is_one_line_with_the_remedy():
    tensorflow = pytest.importorskip("tensorflow")
    with pytest.raises(tensorflow.errors.ResourceExhaustedError) as raised:
        tensorflow.zeros([LARGE])
    _check(raised.value, "there is no memory left (")


def test_what_python_raises_names_itself():
    with pytest.raises(MemoryError) as raised:
        bytearray(LARGE)
    _check(raised.value, "there is no memory left (MemoryError). Set ")


def test_an_error_of_a_gpu_is_known_by_its_type():
    _check(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "2 GiB")


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("a wrong shape")])
def test_other_errors_are_none_of_memory(error):
    assert memory_failure(error) is None
