"""The losses against their formulas, written out in numpy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from steppers import EACH_FRAMEWORK

from pipelines.catalog import LOSSES
from pipelines.errors import InputError
from pipelines.losses.candidates import Picks
from pipelines.settings.objective import objective
from pipelines.training.steppers.torch import on_device

ALL = Picks(np.arange(6), np.empty((0, 2), np.int64))
"""Each of six anchors picks its own of all candidates."""


@pytest.fixture
def sides():
    generator = np.random.default_rng(5)
    return [unit(side) for side in generator.normal(size=(3, 6, 8)).astype(np.float32)]


def unit(side):
    return side / np.linalg.norm(side, axis=-1, keepdims=True)


@pytest.fixture(params=EACH_FRAMEWORK)
def loss_of(request) -> Callable[..., float]:
    """A loss in every framework in turn, of numpy arrays."""
    return lambda *arguments, **keys: evaluate(request.param, *arguments, **keys)[0]


def evaluate(framework, name, sides, targets, **keys):
    """Loss and gradients of the sides."""
    form, settings = LOSSES.load(name).form(framework), objective(name, **keys)
    if framework == "torch":
        tensors = [torch.tensor(side, requires_grad=True) for side in sides]
        loss = form(tensors, on_device(targets, torch.device("cpu")), settings)
        return loss.item(), [slope.numpy() for slope in torch.autograd.grad(loss, tensors)]
    import tensorflow as tf

    tensors = [tf.constant(side) for side in sides]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = form(tensors, targets, settings)
    return float(loss), [slope.numpy() for slope in tape.gradient(loss, tensors)]


EXCLUDED = np.array([[0, 1], [0, 4], [2, 3], [5, 0], [5, 1], [5, 2], [5, 3], [5, 4]])


@pytest.mark.parametrize("name", ["in_batch_negatives", "simcse"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("excluded", [ALL.excluded, EXCLUDED], ids=["all", "some"])
def test_in_batch_negatives_is_the_cross_entropy_of_picking_the_right_text(
    sides, name, temperature, count, excluded, loss_of
):
    anchor, *candidates = sides[:count]
    weights = np.exp(anchor @ np.concatenate(candidates).T / temperature)
    weights[tuple(excluded.T)] = 0
    expected = -np.log(np.diag(weights / weights.sum(axis=1, keepdims=True))).mean()
    picks = Picks(ALL.own, excluded)
    loss = loss_of(name, sides[:count], picks, temperature=temperature)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
def test_what_no_anchor_sees_is_not_moved(sides, framework):
    seen_by_nobody = np.stack([np.delete(np.arange(6), 3), np.full(5, 3)], axis=1)
    left_alone = np.stack([np.full(5, 3), np.delete(np.arange(6), 3)], axis=1)
    picks = Picks(ALL.own, np.concatenate([seen_by_nobody, left_alone]))
    _, (anchor, positive) = evaluate(framework, "in_batch_negatives", sides[:2], picks)
    # The pair sees itself alone: there is nothing to choose.
    np.testing.assert_array_equal([anchor[3], positive[3]], 0)
    assert np.isfinite([anchor, positive]).all()
    assert np.delete(np.abs(positive).max(axis=1), 3).min() > 0


@pytest.mark.parametrize("framework", EACH_FRAMEWORK)
def test_some_anchors_at_a_time_make_the_loss_of_all(sides, framework):
    whole, slopes = evaluate(framework, "in_batch_negatives", sides, Picks(ALL.own, EXCLUDED))
    anchor, *candidates = sides
    parts = []
    for first, last in ((0, 2), (2, 6)):
        own = EXCLUDED[(EXCLUDED[:, 0] >= first) & (EXCLUDED[:, 0] < last)] - [first, 0]
        picks = Picks(np.arange(first, last), own)
        anchors = anchor[first:last]
        parts.append(evaluate(framework, "in_batch_negatives", [anchors, *candidates], picks))
    shares = (2 / 6, 4 / 6)
    assert sum(
        share * loss for share, (loss, _) in zip(shares, parts, strict=True)
    ) == pytest.approx(whole, rel=1e-5)
    at_left, *at_candidates = zip(*(found for _, found in parts), strict=True)
    joined = np.concatenate([share * part for share, part in zip(shares, at_left, strict=True)])
    np.testing.assert_allclose(joined, slopes[0], rtol=1e-4, atol=1e-6)
    for found, expected in zip(at_candidates, slopes[1:], strict=True):
        total = sum(share * part for share, part in zip(shares, found, strict=True))
        np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_called_as_in_the_registry(name):
    assert LOSSES.load(name).name == objective(name).name == name


def drawn(sides, width, seed):
    """Unit vectors [sides, 6, width]."""
    return unit(np.random.default_rng(seed).normal(size=(sides, 6, width)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 3])
def test_similarities_of_all_texts_are_those_of_a_teacher_of_any_width(loss_of, count):
    sides, teacher = drawn(count, 8, 1), drawn(count, 3, 2)
    own, wanted = sides.reshape(-1, 8), teacher.reshape(-1, 3)
    texts = len(own)
    pairs = [(i, j) for i in range(texts) for j in range(texts) if i != j]
    expected = np.mean([(own[i] @ own[j] - wanted[i] @ wanted[j]) ** 2 for i, j in pairs])
    found = loss_of("similarity_distillation", sides, [*teacher])
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_wider_teacher_is_cut_and_scaled_again(loss_of):
    sides, teacher = drawn(2, 3, 1), drawn(2, 8, 2)
    cut = teacher[..., :3] / np.linalg.norm(teacher[..., :3], axis=-1, keepdims=True)
    expected = 1 - (sides * cut).sum(axis=-1).mean()
    found = loss_of("embedding_distillation", sides, [*teacher])
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_teacher_that_is_too_narrow_is_refused():
    taught = objective("embedding_distillation")
    taught.check_width(8, 8)
    told = (
        r"^objective\.name: the teacher's vectors have 6 dimensions, and the embeddings have 8\. S"
    )
    with pytest.raises(InputError, match=told):
        taught.check_width(8, 6)
    objective("similarity_distillation").check_width(8, 6)
