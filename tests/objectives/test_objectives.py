"""The losses against their formulas, written out in numpy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pipelines.objectives import OBJECTIVES

FRAMEWORKS = ["tensorflow", "torch"]


@pytest.fixture
def sides():
    generator = np.random.default_rng(5)
    return list(generator.normal(size=(3, 6, 8)).astype(np.float32))


@pytest.fixture(params=FRAMEWORKS)
def loss_of(request) -> Callable[..., float]:
    """A loss in every framework in turn, of numpy arrays."""
    return lambda *arguments: evaluate(request.param, *arguments)[0]


def evaluate(framework, name, sides, scores, temperature):
    """Loss and gradients of the sides."""
    form = OBJECTIVES[name].form(framework)
    if framework == "torch":
        tensors = [torch.tensor(side, requires_grad=True) for side in sides]
        loss = form(tensors, None if scores is None else torch.from_numpy(scores), temperature)
        return loss.item(), [slope.numpy() for slope in torch.autograd.grad(loss, tensors)]
    import tensorflow as tf

    tensors = [tf.constant(side) for side in sides]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        loss = form(tensors, scores, temperature)
    return float(loss), [slope.numpy() for slope in tape.gradient(loss, tensors)]


def cosines(left, right):
    left = left / np.linalg.norm(left, axis=1, keepdims=True)
    right = right / np.linalg.norm(right, axis=1, keepdims=True)
    return left @ right.T


@pytest.mark.parametrize("name", ["in_batch_negatives", "twins"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("count", [2, 3])
def test_in_batch_negatives_is_the_cross_entropy_of_picking_the_right_text(
    sides, name, temperature, count, loss_of
):
    left, *candidates = sides[:count]
    scores = cosines(left, np.concatenate(candidates)) / temperature
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(np.diag(shares)).mean()
    assert loss_of(name, sides[:count], None, temperature) == pytest.approx(expected, rel=1e-4)


def test_hard_negatives_are_those_of_multiple_negatives_ranking(sides, loss_of):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([torch.tensor(side) for side in sides], None)
    loss = loss_of("in_batch_negatives", sides, None, 0.05)
    assert loss == pytest.approx(float(expected), rel=1e-4)


def test_cosine_regression_is_the_squared_error(sides, loss_of):
    scores = np.linspace(0, 1, 6, dtype=np.float32)
    expected = ((np.diag(cosines(*sides[:2])) - scores) ** 2).mean()
    loss = loss_of("cosine_regression", sides[:2], scores, 0.05)
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "count"), [("in_batch_negatives", 3), ("twins", 2), ("cosine_regression", 2)]
)
def test_all_frameworks_give_the_same_loss_and_gradients(sides, name, count):
    scores = np.linspace(0, 1, 6, dtype=np.float32)
    (loss, slopes), *others = (
        evaluate(framework, name, sides[:count], scores, 0.05) for framework in FRAMEWORKS
    )
    for other_loss, other_slopes in others:
        assert other_loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(other_slopes, slopes, rtol=1e-4, atol=1e-5)


def test_every_objective_of_the_settings_is_there():
    from typing import get_args

    from pipelines.settings import ObjectiveSettings

    assert set(get_args(ObjectiveSettings.model_fields["name"].annotation)) == set(OBJECTIVES)
