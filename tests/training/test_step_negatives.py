"""The loss of a step by parts, against all of its similarities at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelines.losses.candidates import Candidates
from pipelines.losses.loss import configured_loss
from pipelines.settings.objective import objective
from pipelines.training.collectives.base import SingleProcess
from pipelines.training.steppers import objectives as step_negatives
from pipelines.training.steppers.torch import gradients_of_loss, on_device


@given(st.integers(1, 10_000), st.integers(1, 2**24))
def test_parts_are_all_anchors_and_have_no_more_similarities_than_may_be(anchors, candidates):
    parts = list(step_negatives.chunks(anchors, candidates))
    assert [place for part in parts for place in range(*part)] == list(range(anchors))
    most = max(end - start for start, end in parts)
    assert most == 1 or most * candidates <= step_negatives.SIMILARITIES


def everyone(examples, sides):
    """Identities of which many are alike."""
    return np.random.default_rng(3).integers(0, examples // 2, (examples, 1 + sides))


EVERYTHING = {
    "directions": ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"),
    "hardness_strength": 4.0,
    "false_negative_margin": 0.1,
    "dimensions": (8, 3),
}
APART = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}


@pytest.mark.parametrize("keys", [{}, EVERYTHING, APART])
@pytest.mark.parametrize("sides", [2, 3])
@pytest.mark.parametrize("at_once", [1, 40, 2**22])
def test_the_parts_make_the_loss_and_the_gradients_of_the_whole(monkeypatch, sides, at_once, keys):
    monkeypatch.setattr(step_negatives, "SIMILARITIES", at_once)
    settings = objective(**keys)
    loss_of = configured_loss(settings, "torch")
    generator = torch.Generator().manual_seed(1)
    embeddings = [
        torch.nn.functional.normalize(torch.randn(12, 8, generator=generator), dim=-1)
        for _ in range(sides)
    ]
    candidates = Candidates(everyone(12, sides), anchors=settings.compares_anchors)
    picks = candidates.picks(0, 12)
    assert 0 < len(picks.excluded) < 12 * candidates.count / 2
    leaves = [side.clone().requires_grad_() for side in embeddings]
    plain = loss_of(leaves, on_device(picks, torch.device("cpu")))
    plain.backward()
    asked = []

    def gradients_of(some, own_picks, share):
        asked.append(len(own_picks.own) * candidates.count)
        return gradients_of_loss(loss_of, some, own_picks, share)

    loss, pulls = step_negatives.pulls_on_embeddings(
        embeddings, candidates, SingleProcess(), gradients_of, torch.cat
    )
    assert max(asked) <= max(at_once, candidates.count)
    assert float(loss) == pytest.approx(plain.item(), rel=1e-5)
    for pull, leaf in zip(pulls, leaves, strict=True):
        np.testing.assert_allclose(pull, leaf.grad, rtol=1e-4, atol=1e-6)
