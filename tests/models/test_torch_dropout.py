"""Masks of dropout, drawn by PyTorch from a seeded generator, or by a hash of the place."""

import math

import numpy as np
import pytest
import torch

from pipelines.models.frameworks import torch_batch, torch_dropout
from pipelines.models.frameworks.torch_dropout import DropoutMasks, JoinedMasks, keeps
from pipelines.models.spec import DropoutRates, NoisePlace

CPU = torch.device("cpu")
RATES = DropoutRates(0.3, 0.2)
TOKENS, WIDTH = 2000, 256
FAR = 5.5
"""Standard deviations that none of some thousand fair figures is off."""


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


def kept(seed=(1, 2), site=3, share=0.3, tokens=TOKENS, width=WIDTH):
    keys = torch.from_numpy(DropoutMasks(RATES, seed, CPU).keys(tokens))
    return keeps(keys, [site], width, round(share * 2**16))[0].numpy()


def deviations(means, share, count):
    """How far means of so many draws are off, in standard deviations."""
    return np.abs(means - (1 - share)) / math.sqrt(share * (1 - share) / count)


def correlation(left, right):
    """How far two masks are from independent, in standard deviations."""
    found = np.corrcoef(left.ravel(), right.ravel())[0, 1]
    return abs(found) * math.sqrt(left.size)


class TestHash:
    """Noise as a GPU makes it; integers alone, so the same on a CPU."""

    @pytest.mark.parametrize("share", [0.02, 0.1, 0.5, 0.9])
    def test_it_drops_its_share_everywhere(self, share):
        mask = kept(share=share)
        assert deviations(mask.mean(), share, mask.size) < FAR
        assert deviations(mask.mean(0), share, TOKENS).max() < FAR
        assert deviations(mask.mean(1), share, WIDTH).max() < FAR

    @pytest.mark.parametrize("apart", [1, 2, 3, 4, 64])
    def test_columns_and_tokens_are_independent(self, apart):
        mask = kept(share=0.5)
        assert correlation(mask[:, apart:], mask[:, :-apart]) < FAR
        assert correlation(mask[apart:], mask[:-apart]) < FAR
        # Words that differ in a single number, in pairs.
        together = (mask[:, apart:] & mask[:, :-apart]).mean(0)
        assert deviations(together, 0.75, TOKENS).max() < FAR

    @pytest.mark.parametrize(
        "other", [{"site": 4}, {"site": 2}, {"seed": (1, 3)}, {"seed": (2, 2)}]
    )
    def test_places_and_seeds_are_independent(self, other):
        assert correlation(kept(share=0.5), kept(share=0.5, **other)) < FAR

    def test_all_columns_of_wide_layers_differ(self):
        words = np.packbits(kept(share=0.5, tokens=64, width=4096).T, axis=1)
        assert len(np.unique(words, axis=0)) == 4096


def joined(parts, tokens):
    return JoinedMasks([DropoutMasks(RATES, seed, CPU, within) for seed, within in parts], tokens)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_segment_has_its_noise_in_any_batch_and_in_parts(at_once, monkeypatch):
    if at_once:
        monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())
    ones, whole = torch.ones(30, 9), NoisePlace()
    first, second = (DropoutMasks(RATES, seed, CPU).drop(5, ones) for seed in ((1, 2), (3, 4)))
    both = joined([((3, 4), whole), ((1, 2), whole)], [30, 30]).drop(5, torch.cat([ones, ones]))
    assert torch.equal(both, torch.cat([second, first]))
    parts = joined([((1, 2), NoisePlace(4, 13, 9)), ((1, 2), whole)], [17, 13])
    assert torch.equal(parts.drop(5, ones), torch.cat([first[13:], first[:13]]))
    assert len(first.unique()) == 2


def test_a_part_of_a_segment_has_its_part_of_attentions_mask():
    mask = DropoutMasks(RATES, (1, 2), CPU).attention_mask(4, 7, 3, 9)
    part = DropoutMasks(RATES, (1, 2), CPU, NoisePlace(5, 40, 9)).attention_mask(4, 2, 3, 6)
    assert torch.equal(part, mask[5:7, :, :6, :6])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_dropped_alike(dtype, monkeypatch):
    monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())
    values = torch.ones(50, 12, dtype=dtype, requires_grad=True)
    found = DropoutMasks(RATES, (1, 2), CPU).drop(5, values)
    assert found.dtype == torch.float32
    found.sum().backward()
    torch.testing.assert_close(values.grad, found.detach().to(dtype))


def test_places_hashed_together_have_the_masks_of_each(monkeypatch):
    monkeypatch.setattr(torch_batch, "BY_SEGMENT", frozenset())
    ones, sites = torch.ones(30, 10), [2, 3, 5, 6, 8, 9]
    apart = [DropoutMasks(RATES, (1, 2), CPU).drop(site, ones) for site in sites]
    for places in (10, 3, 1):
        monkeypatch.setattr(torch_dropout, "_HASHED_AT_ONCE", places * 30 * 3)
        masks = DropoutMasks(RATES, (1, 2), CPU)
        masks.plan(sites)
        assert all(map(torch.equal, (masks.drop(site, ones) for site in sites), apart))
        # None is left in memory.
        assert not masks._hashed
