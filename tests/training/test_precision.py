"""What `precision: auto` means."""

import pytest

from pipelines.settings import TrainingSettings
from pipelines.training.precision import with_precision


@pytest.mark.parametrize(
    ("asked", "on_gpu", "expected"),
    [
        ("auto", True, "bf16"),
        ("auto", False, "fp32"),
        ("fp32", True, "fp32"),
        ("bf16", False, "bf16"),
    ],
)
def test_a_gpu_computes_in_bf16_unless_told(asked, on_gpu, expected):
    training = TrainingSettings(precision=asked, seed=3)
    found = with_precision(training, on_gpu=on_gpu)
    assert (found.precision, found.seed) == (expected, 3)
