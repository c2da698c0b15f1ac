"""A granule in parts has the loss and the gradients of the granule as a whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steppers import PAIR, SPEC, STATIC, TRIPLET, assert_close, granule, stepper, work

from pipelines.errors import InputError
from pipelines.lanes.plan import noise_seed
from pipelines.models.weights import random_weights
from pipelines.settings.load import parse
from pipelines.training.steppers.base import batches, granule_texts, parts_needed

UNCLIPPED = {"clip_norm": 0.0}


@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=40), st.one_of(st.none(), st.integers(1, 200))
)
def test_parts_are_all_texts_in_order_and_as_large_as_may_be(lengths, most):
    part = granule(1, PAIR, len(lengths))
    sides = granule_texts(part, PAIR, 17, 0)
    ids = np.arange(len(lengths))[:, None].repeat(30, 1).astype(np.int32)
    long = sides[1]._replace(token_ids=ids, lengths=np.array(lengths, np.int32))
    both = [sides[0], long]
    found = batches(both, [parts_needed(side.lengths, most) for side in both])
    for number, side in enumerate(both):
        parts = [one for batch in found for one in batch if one.side == number]
        np.testing.assert_array_equal(np.concatenate([one.lengths for one in parts]), side.lengths)
        joined = np.concatenate([one.token_ids for one in parts])
        np.testing.assert_array_equal(joined, side.token_ids)
        assert len({one.seed for one in parts}) == len(parts)
        if most is not None and len(found) > 1:
            width = max(side.lengths)
            assert all(len(one.lengths) * width <= max(most, width) for one in parts)
    if most is None or most >= 40 * 30:
        assert found == [both]


def test_every_side_has_noise_of_its_own():
    seeds = [texts.seed for texts in granule_texts(granule(3, TRIPLET), TRIPLET, 17, 1)]
    assert seeds == [noise_seed(17, 1, 3, site) for site in range(3)]


@pytest.mark.parametrize("negatives", ["granule", "step"])
@pytest.mark.parametrize("spec", [SPEC, STATIC], ids=lambda spec: spec.kind)
@pytest.mark.parametrize("most", [1, 20])
def test_loss_and_gradients_are_those_of_whole_granules(negatives, spec, most):
    start, parts = random_weights(spec, 3), work(0, granule(1, TRIPLET), granule(2, TRIPLET))
    (loss, expected), (found_loss, found) = (
        stepper(
            "torch", {"negatives": negatives}, UNCLIPPED | limit, sides=TRIPLET, spec=spec
        ).gradients(parts, start)
        for limit in ({}, {"tokens_per_micro_batch": most})
    )
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_scores_may_be_compared_in_parts():
    start, parts = random_weights(SPEC, 3), work(0, granule(1), granule(2))
    (loss, expected), (found_loss, found) = (
        stepper("torch", {"name": "cosine_regression"}, UNCLIPPED | limit).gradients(parts, start)
        for limit in ({}, {"tokens_per_micro_batch": 16})
    )
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("negatives", ["granule", "step"])
def test_both_passes_have_the_same_noise(negatives):
    """The gradient is that of the loss: a small step along it lowers the loss by its square."""
    training = UNCLIPPED | {"dropout": 0.2, "tokens_per_micro_batch": 16}
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
    with pytest.raises(InputError, match=r"^training\.tokens_per_micro_batch: framework `tensorfl"):
        parse({"training": {"framework": "tensorflow", "tokens_per_micro_batch": 1024}})
