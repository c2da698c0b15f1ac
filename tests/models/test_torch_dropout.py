"""Masks of dropout that PyTorch draws itself, from a generator that is seeded for each place."""

import torch

from pipelines.models.frameworks.torch import DropoutMasks
from pipelines.models.spec import DropoutRates

CPU = torch.device("cpu")


def drawn(seed, site):
    masks = DropoutMasks(DropoutRates(0.3, 0.3), seed, CPU)
    with masks.seeded(site):
        return torch.nn.functional.dropout(torch.ones(1000), 0.3)


def test_what_is_drawn_follows_from_seed_and_place():
    torch.manual_seed(1)
    first = drawn((1, 2), 5)
    torch.manual_seed(2)
    torch.testing.assert_close(drawn((1, 2), 5), first, rtol=0, atol=0)
    for other in (drawn((1, 2), 6), drawn((1, 3), 5)):
        assert not torch.equal(other, first)


def test_the_generator_is_put_back():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    drawn((1, 2), 5)
    assert torch.equal(torch.get_rng_state(), before)
