"""Granules in micro-batches, so that long texts fit in memory. Runs on executors.

What is embedded at once is a *batch*: all sides of a granule or, where a side has more padded
tokens than ``training.tokens_per_micro_batch``, some texts of one side. The loss is still that of
the whole granule or step: the texts are embedded without a graph, then the loss's gradient on the
embeddings is pulled through each batch, which is embedded once more for that.

Source: gradient caching, Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup", RepL4NLP 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelines.lanes.files import Granule
from pipelines.lanes.plan import noise_seed


class Texts(NamedTuple):
    """Texts that are embedded at once; see :func:`pipelines.models.frameworks.torch.forward`.

    Attributes:
        side: Number of their side in what the loss takes.
        token_ids: int32 [texts, width].
        lengths: int32 [texts].
        seed: Of the noise on them.
    """

    side: int
    token_ids: np.ndarray
    lengths: np.ndarray
    seed: tuple[int, ...]


Batch = list[Texts]
"""What is embedded side by side."""


def granule_texts(granule: Granule, sides: Sequence[str], seed: int, epoch: int) -> list[Texts]:
    """The sides of a granule that the objective embeds.

    Args:
        sides: Their names.
        seed: Of the run.
        epoch: Of the step.
    """
    return [
        Texts(
            number,
            granule.sides[name].token_ids,
            granule.sides[name].lengths,
            noise_seed(seed, epoch, granule.number, number),
        )
        for number, name in enumerate(sides)
    ]


def batches(sides: Sequence[Texts], most: int | None) -> list[Batch]:
    """The batches of a granule, in which the texts of each side are in their order.

    They follow from the granule alone, and so does the noise on each, whoever computes it.

    Args:
        sides: Of the granule.
        most: Padded tokens of a batch, if its text has no more; None for any number.
    """
    parts = [_parts(side, most) for side in sides]
    if all(len(of_side) == 1 for of_side in parts):
        return [list(sides)]
    return [[part] for of_side in parts for part in of_side]


def _parts(side: Texts, most: int | None) -> list[Texts]:
    """A side in as few parts of about the same size as have no more tokens."""
    bounds = part_bounds(side.lengths, most)
    if len(bounds) == 2:
        return [side]
    return [
        side._replace(
            token_ids=side.token_ids[first:last],
            lengths=side.lengths[first:last],
            seed=(*side.seed, number),
        )
        for number, (first, last) in enumerate(pairwise(bounds))
    ]


def part_bounds(lengths: np.ndarray, most: int | None) -> list[int]:
    """The numbers of texts at which the parts of a side begin, and at last how many there are.

    Args:
        lengths: int32 [texts], tokens of each.
        most: Padded tokens of a part, if its text has no more; None for any number.
    """
    texts, width = len(lengths), int(lengths.max())
    count = 1 if most is None else -(-texts // min(max(most // width, 1), texts))
    return [texts * number // count for number in range(count + 1)]
