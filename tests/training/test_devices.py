"""The device of a worker, and what `precision: auto` means."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pipelines.errors import InputError
from pipelines.models.inference.backends import choose_precision
from pipelines.settings import TrainingSettings
from pipelines.training import devices
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.devices import (
    choose_device,
    own_device,
    show_one_gpu,
    with_precision,
    worker_device,
)


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


@pytest.mark.parametrize(
    ("given", "visible", "local_rank", "expected"),
    [
        (None, None, None, "cpu"),
        (None, "", "1", "cpu"),
        (None, "0,1", "0", "cuda:0"),
        # Ranks of a host that sees several GPUs share them out.
        (None, "0,1", "1", "cuda:1"),
        (None, "0,1", "3", "cuda:1"),
        # Spark's address counts, whether it is a name among those that are visible or a place.
        ("1", None, None, "cuda:1"),
        ("1", "1", "0", "cuda:0"),
        ("1", "2,3", "0", "cuda:1"),
        ("3", "2,3", "0", "cuda:1"),
    ],
)
def test_a_worker_takes_the_gpu_that_it_was_given(given, visible, local_rank, expected):
    told = {"CUDA_VISIBLE_DEVICES": visible, "LOCAL_RANK": local_rank}
    environment = {name: value for name, value in told.items() if value is not None}
    assert choose_device(given, environment) == expected


def test_a_reused_process_shows_the_gpu_of_each_task_until_it_computes(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(devices, "_AT_START", {"CUDA_VISIBLE_DEVICES": "2,3"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    for given, shown in (("1", "3"), ("0", "2"), ("3", "3")):
        show_one_gpu(given)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == shown
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    show_one_gpu("1")
    with pytest.raises(InputError, match=r"reuse: a Python worker that computes on GPU 3 cannot"):
        show_one_gpu("0")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.fixture
def seen_gpu(monkeypatch):
    """A machine on which PyTorch sees a GPU, of which nobody has told yet."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    devices._warn_of_unused_gpus.cache_clear()
    return torch


def test_a_worker_on_the_cpu_says_once_that_there_is_a_gpu(seen_gpu, monkeypatch, caplog):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [worker_device(), worker_device()] == [seen_gpu.device("cpu")] * 2
    assert [record.message for record in caplog.records] == [
        "this machine has a GPU, but neither Spark nor CUDA_VISIBLE_DEVICES has given this process"
        " one. It computes on the CPU"
    ]


def test_who_wants_no_gpu_is_told_of_none(seen_gpu, monkeypatch, caplog):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert worker_device() == seen_gpu.device("cpu")
    assert caplog.records == []


def test_a_gpu_is_found_where_there_is_no_spark(seen_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert own_device() == "cuda:0"
    assert worker_device() == seen_gpu.device("cuda", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "own"), [("cuda:1", ["second"]), ("cuda:0", ["first"]), ("cpu", [])]
)
def test_tensorflow_takes_the_memory_that_it_needs_of_one_gpu(monkeypatch, device, own):
    tf = pytest.importorskip("tensorflow")
    from pipelines.models.frameworks.tensorflow import limit_gpus

    asked = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["first", "second"])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *one: asked.append(one))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *one: asked.append(one))
    limit_gpus(device)
    assert asked == [(own, "GPU"), *((gpu, True) for gpu in own)]


@pytest.mark.slow
def test_a_worker_of_tensorflow_is_given_its_gpu(monkeypatch):
    pytest.importorskip("tensorflow")
    from pipelines.training.steppers import tensorflow as stepper

    given = []
    monkeypatch.setattr(stepper.tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(stepper, "limit_gpus", given.append)
    monkeypatch.setattr(stepper, "configure_threads", lambda threads: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    stepper.TensorFlowStepper.prepare_process(TrainingSettings())
    assert given == ["cuda:0"]


@pytest.mark.slow
def test_tensorflow_that_has_begun_says_that_it_keeps_what_it_has(monkeypatch, caplog):
    tf = pytest.importorskip("tensorflow")
    from pipelines.models.frameworks.tensorflow import limit_gpus

    def refuse(*_):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    monkeypatch.setattr(tf.config, "set_visible_devices", refuse)
    limit_gpus("cuda:0")
    assert "TensorFlow already runs, and may not keep to cuda:0" in caplog.text
