"""PyTorch's updates against TensorFlow's, and what they must not depend on."""

import numpy as np
import pytest
import torch
from steppers import PAIR, SPEC, STATIC, TRIPLET, assert_close, granule, stepper, work

from pipelines.models.weights import random_weights
from pipelines.runs.checkpoint import load_checkpoint, save_checkpoint
from pipelines.training.devices import choose_device, worker_device

pytestmark = pytest.mark.slow

LIVELY = {"weight_decay": 0.1, "clip_norm": 0.5}


def curve(each, steps, rate=3e-3):
    return [each.step(work(i, granule(2 * i), granule(2 * i + 1)), rate) for i in steps]


@pytest.mark.parametrize(
    ("negatives", "spec"),
    [
        ("step", SPEC),
        ("granule", STATIC),
        pytest.param("granule", SPEC, marks=pytest.mark.matrix),
        pytest.param("step", STATIC, marks=pytest.mark.matrix),
    ],
    ids=lambda one: getattr(one, "kind", one),
)
def test_the_loss_curve_is_tensorflows(negatives, spec):
    steppers = [
        stepper(name, {"negatives": negatives}, LIVELY, spec=spec)
        for name in ("tensorflow", "torch")
    ]
    expected, found = (curve(each, range(20)) for each in steppers)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert np.mean(expected[-3:]) != pytest.approx(np.mean(expected[:3]), rel=0.01)


@pytest.mark.parametrize(
    ("name", "sides"), [("cosine_regression", PAIR), ("in_batch_negatives", TRIPLET)]
)
def test_gradients_are_tensorflows(name, sides):
    start = random_weights(SPEC, 3)
    parts = work(0, granule(1, sides), granule(2, sides))
    (loss, expected), (torch_loss, found) = (
        stepper(framework, {"name": name}, {"clip_norm": 0.0}, sides=sides).gradients(parts, start)
        for framework in ("tensorflow", "torch")
    )
    assert torch_loss == pytest.approx(loss, rel=1e-5)
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for key, gradient in expected.items():
        np.testing.assert_allclose(found[key], gradient, rtol=0, atol=1e-4 * largest, err_msg=key)


@pytest.mark.parametrize("order", [("tensorflow", "torch"), ("torch", "tensorflow")])
def test_a_checkpoint_of_one_framework_is_resumed_in_the_other(tmp_path, order):
    first, second = order
    begun, straight = stepper(first, training=LIVELY), stepper(second, training=LIVELY)
    curve(begun, range(4))
    save_checkpoint(tmp_path, begun.checkpoint(4), keep=2)
    resumed = stepper(second, training=LIVELY, checkpoint=load_checkpoint(tmp_path, 4))
    expected = curve(straight, range(8))[4:]
    np.testing.assert_allclose(curve(resumed, range(4, 8)), expected, rtol=1e-4)


@pytest.mark.parametrize("negatives", ["granule", "step"])
def test_noise_does_not_follow_from_the_process_or_the_order(negatives):
    objective, training = {"negatives": negatives}, {"dropout": 0.2, "clip_norm": 0.0}
    start, parts = random_weights(SPEC, 3), [granule(number) for number in range(3)]
    forwards = stepper("torch", objective, training).gradients(work(0, *parts), start)
    torch.manual_seed(99)
    torch.rand(7)
    another = stepper("torch", objective, training)
    another.gradients(work(0, granule(8)), start)
    backwards = another.gradients(work(0, *reversed(parts)), start)
    assert backwards[0] == pytest.approx(forwards[0], rel=1e-5)
    assert_close(backwards[1], forwards[1], rtol=1e-5)
    quiet = stepper("torch", objective, {"clip_norm": 0.0})
    assert quiet.gradients(work(0, *parts), start)[0] != pytest.approx(forwards[0], rel=1e-3)


@pytest.mark.parametrize("negatives", ["granule", "step"])
def test_activation_checkpointing_changes_nothing(negatives):
    start, parts = random_weights(SPEC, 3), work(0, granule(1), granule(2))
    (loss, expected), (other_loss, found) = (
        stepper(
            "torch",
            {"negatives": negatives},
            {"dropout": 0.2, "activation_checkpointing": checkpointing},
        ).gradients(parts, start)
        for checkpointing in (False, True)
    )
    assert other_loss == loss
    assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_bf16_stays_near_fp32():
    full, half = (
        curve(stepper("torch", training={"precision": kind}), range(12))
        for kind in ("fp32", "bf16")
    )
    assert half != full
    np.testing.assert_allclose(half, full, rtol=0.02)


def test_words_that_are_not_in_a_step_have_no_gradient():
    each, start = stepper("torch", training={"clip_norm": 0.0}), random_weights(SPEC, 3)
    each.gradients(work(0, granule(1)), start)
    part = granule(2)
    _, gradients = each.gradients(work(1, part), start)
    seen = {
        token
        for side in part.sides.values()
        for row, length in zip(side.token_ids, side.lengths, strict=True)
        for token in row[:length]
    }
    touched = np.flatnonzero(gradients["embeddings.word_embeddings.weight"].any(axis=1))
    assert set(touched) == seen


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, "cpu"),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        (None, {"CUDA_VISIBLE_DEVICES": "3"}, "cuda:0"),
        (None, {"CUDA_VISIBLE_DEVICES": "4,5", "LOCAL_RANK": "3"}, "cuda:1"),
        ("2", {}, "cuda:2"),
        ("5", {"CUDA_VISIBLE_DEVICES": "4,5"}, "cuda:1"),
        ("1", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "cuda:1"),
        # Of the machine, where the executor sees one GPU of it.
        ("3", {"CUDA_VISIBLE_DEVICES": "0", "LOCAL_RANK": "0"}, "cuda:0"),
    ],
)
def test_a_worker_takes_the_gpu_that_it_was_given(given, environment, expected):
    assert choose_device(given, environment) == expected


def test_without_a_gpu_a_worker_takes_the_cpu(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert worker_device() == torch.device("cpu")
