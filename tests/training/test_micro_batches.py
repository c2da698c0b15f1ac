"""A granule in parts has the loss and the gradients of the granule as a whole."""

import numpy as np
import pytest
from steppers import SPEC, TRIPLET, assert_close, granule, stepper, work

from pipelines.errors import InputError
from pipelines.lanes.plan import noise_seed
from pipelines.models.weights import random_weights
from pipelines.settings.load import parse
from pipelines.training.steppers.base import granule_texts

UNCLIPPED = {"clip_norm": 0.0}


def test_every_side_has_noise_of_its_own():
    seeds = [texts.seed for texts in granule_texts(granule(3, TRIPLET), TRIPLET, 17, 1)]
    assert seeds == [noise_seed(17, 1, 3, site) for site in range(3)]


def test_scores_may_be_compared_in_parts():
    start, parts = random_weights(SPEC, 3), work(0, granule(1), granule(2))
    (loss, expected), (found_loss, found) = (
        stepper("torch", {"name": "cosine_regression"}, UNCLIPPED | limit).gradients(parts, start)
        for limit in ({}, {"tokens_per_forward": 16})
    )
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("negatives", ["granule", "step"])
def test_both_passes_have_the_same_noise(negatives):
    """The gradient is that of the loss: a small step along it lowers the loss by its square."""
    training = UNCLIPPED | {"dropout": 0.2, "tokens_per_forward": 16}
    each, start = stepper("torch", {"negatives": negatives}, training), random_weights(SPEC, 3)
    parts, size = work(0, granule(1), granule(2)), 1e-2
    _, gradients = each.gradients(parts, start)
    norm = np.sqrt(sum((one.astype(np.float64) ** 2).sum() for one in gradients.values()))
    ahead, behind = (
        {name: value - sign * size / norm * gradients[name] for name, value in start.items()}
        for sign in (1, -1)
    )
    slope = (each.gradients(parts, behind)[0] - each.gradients(parts, ahead)[0]) / (2 * size)
    assert slope == pytest.approx(norm, rel=0.02)
    # It follows from seeds: the same once more.
    assert_close(each.gradients(parts, start)[1], gradients, rtol=0, atol=0)


def test_another_framework_refuses_parts():
    with pytest.raises(InputError, match=r"^training\.tokens_per_forward: framework `tensorfl"):
        parse({"training": {"framework": "tensorflow", "tokens_per_forward": 1024}})
