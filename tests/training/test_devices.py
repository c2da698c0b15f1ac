"""What `precision: auto` means."""

from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.models.inference.backends import choose_precision
from pipelines.settings import TrainingSettings
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.devices import with_precision


def among(*others: bool) -> SimpleNamespace:
    """An exchange with workers that tell what they have."""
    told = np.array(others, np.float32)
    return SimpleNamespace(
        workers=1 + len(others), all_gather=lambda own: np.concatenate([told, own]).reshape(-1)
    )


@pytest.mark.parametrize(
    ("asked", "has_bf16", "collectives", "expected"),
    [
        ("auto", True, SingleProcess(), "bf16"),
        ("auto", False, SingleProcess(), "fp32"),
        ("auto", True, among(True, True), "bf16"),
        ("auto", True, among(True, False), "fp32"),
        ("auto", False, among(True, True), "fp32"),
        ("fp32", True, among(True, True), "fp32"),
        ("bf16", False, among(False), "bf16"),
    ],
)
def test_workers_compute_in_bf16_if_all_of_them_can(asked, has_bf16, collectives, expected):
    training = TrainingSettings(precision=asked, seed=3)
    found = with_precision(training, collectives, has_bf16=has_bf16)
    assert (found.precision, found.seed) == (expected, 3)


@pytest.mark.parametrize(
    ("capability", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)]
)
def test_a_gpu_without_units_for_bf16_does_not_emulate_them(monkeypatch, capability, expected):
    torch = pytest.importorskip("torch")
    from pipelines.models.frameworks.torch import has_bf16

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bf16(torch.device("cuda", 0)) == expected
    assert choose_precision("auto", "cuda:0") == ("bf16" if expected else "fp32")
    assert choose_precision("bf16", "cuda:0") == "bf16"


@pytest.mark.parametrize("can", [True, False])
def test_a_cpu_is_asked_for_its_instructions(monkeypatch, can):
    torch = pytest.importorskip("torch")
    from pipelines.models.frameworks import torch as encoder

    monkeypatch.setattr(encoder, "computes_in_bf16", lambda: can)
    assert encoder.has_bf16(torch.device("cpu")) == can
