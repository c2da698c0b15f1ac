"""Alignment and uniformity against the code in the paper."""

import numpy as np
import pytest

from pipelines.evaluation.geometry import geometry_figures, uniformity
from pipelines.vectors.nearest import unit_length


def papers_alignment(x, y) -> float:
    """Wang and Isola 2020, figure 5: `(x - y).norm(dim=1).pow(alpha).mean()`, alpha = 2."""
    return float((x - y).norm(dim=1).pow(2).mean())


def papers_uniformity(x) -> float:
    """The same: `pdist(x, p=2).pow(2).mul(-t).exp().mean().log()`, t = 2."""
    import torch

    return float(torch.pdist(x, p=2).pow(2).mul(-2).exp().mean().log())


def test_equals_the_code_in_the_paper() -> None:
    import torch

    random = np.random.default_rng(3)
    first = unit_length(random.normal(size=(1500, 16)))
    second = unit_length(first + 0.3 * random.normal(size=first.shape))
    x, y = (torch.from_numpy(side).double() for side in (first, second))
    figures = geometry_figures(first, second)
    assert figures["pairs"] == 1500
    assert figures["alignment"] == pytest.approx(papers_alignment(x, y), rel=1e-6)
    both = (papers_uniformity(x) + papers_uniformity(y)) / 2
    assert figures["uniformity"] == pytest.approx(both, rel=1e-6)


def test_texts_that_are_there_twice_count_once() -> None:
    rows = unit_length(np.random.default_rng(4).normal(size=(40, 8)))
    assert uniformity(np.concatenate([rows, rows[:30]])) == pytest.approx(uniformity(rows))
    assert uniformity(rows[:1].repeat(5, axis=0)) == 0.0
