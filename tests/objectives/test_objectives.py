"""The losses against their formulas, written out in numpy."""

import numpy as np
import pytest

from pipelines.objectives import OBJECTIVES


@pytest.fixture
def sides():
    generator = np.random.default_rng(5)
    return list(generator.normal(size=(3, 6, 8)).astype(np.float32))


def cosines(left, right):
    left = left / np.linalg.norm(left, axis=1, keepdims=True)
    right = right / np.linalg.norm(right, axis=1, keepdims=True)
    return left @ right.T


@pytest.mark.parametrize("name", ["in_batch_negatives", "twins"])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("count", [2, 3])
def test_in_batch_negatives_is_the_cross_entropy_of_picking_the_right_text(
    sides, name, temperature, count
):
    left, *candidates = sides[:count]
    scores = cosines(left, np.concatenate(candidates)) / temperature
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(np.diag(shares)).mean()
    loss = OBJECTIVES[name].loss("tensorflow")(sides[:count], None, temperature)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_hard_negatives_are_those_of_multiple_negatives_ranking(sides):
    import torch
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([torch.tensor(side) for side in sides], None)
    loss = OBJECTIVES["in_batch_negatives"].loss("tensorflow")(sides, None, 0.05)
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)


def test_cosine_regression_is_the_squared_error(sides):
    scores = np.linspace(0, 1, 6, dtype=np.float32)
    expected = ((np.diag(cosines(*sides[:2])) - scores) ** 2).mean()
    loss = OBJECTIVES["cosine_regression"].loss("tensorflow")(sides[:2], scores, 0.05)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_every_objective_of_the_settings_is_there():
    from typing import get_args

    from pipelines.settings import ObjectiveSettings

    assert set(get_args(ObjectiveSettings.model_fields["name"].annotation)) == set(OBJECTIVES)
