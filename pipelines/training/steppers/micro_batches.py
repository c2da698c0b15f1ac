"""Granules in micro-batches, so that long texts fit in memory. Runs on executors.

What is embedded at once is a *batch*: all sides of a granule or, where a side has more padded
tokens than ``training.tokens_per_micro_batch``, some texts of one side. The loss is still that of
the whole granule or step: the texts are embedded without a graph, then the loss's gradient on the
embeddings is pulled through each batch, which is embedded once more for that.

Source: gradient caching, Gao, Zhang, Han and Callan, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup", RepL4NLP 2021, arXiv:2101.06983.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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


def parts_needed(side: Texts, most: int | None) -> int:
    """In how many parts a side is embedded.

    Args:
        side: Of a granule.
        most: Padded tokens of a part, if its text has no more; None for any number.
    """
    return parts_of(side.lengths, most)


def parts_of(lengths: np.ndarray, most: int | None) -> int:
    """The same of texts of some lengths."""
    texts, width = len(lengths), int(lengths.max())
    if most is None or texts * width <= most:
        return 1
    return -(-texts // max(most // width, 1))


def batches(sides: Sequence[Texts], parts: Sequence[int]) -> list[Batch]:
    """The batches of a granule, in which the texts of each side are in their order.

    The noise on a batch follows from the granule and the number of its parts, whoever computes it.

    Args:
        sides: Of the granule.
        parts: Of each side; see :func:`parts_needed`.
    """
    if max(parts) == 1:
        return [list(sides)]
    return [
        [part] for side, count in zip(sides, parts, strict=True) for part in _split(side, count)
    ]


def by_side(some: Sequence[Batch], values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """What there is for each text group of some batches, in the order of each side.

    Args:
        values: Of each batch, for each of its texts.
    """
    sides = 1 + max(texts.side for batch in some for texts in batch)
    found: list[list[Any]] = [[] for _ in range(sides)]
    for batch, of_batch in zip(some, values, strict=True):
        for texts, value in zip(batch, of_batch, strict=True):
            found[texts.side].append(value)
    return found


def per_batch(some: Sequence[Batch], values: Sequence[Any]) -> list[list[Any]]:
    """The rows of each batch, of tensors that hold those of all batches.

    Args:
        values: Of each side, rows in the order of its texts.
    """
    sizes = [[len(texts.lengths) for texts in batch] for batch in some]
    of_sides = by_side(some, sizes)
    parts = [iter(value.split(of_side)) for value, of_side in zip(values, of_sides, strict=True)]
    return [[next(parts[texts.side]) for texts in batch] for batch in some]


def _split(side: Texts, count: int) -> list[Texts]:
    """A side in parts of about the same size."""
    if count == 1:
        return [side]
    return [
        side._replace(
            token_ids=side.token_ids[first:last],
            lengths=side.lengths[first:last],
            seed=(*side.seed, number),
        )
        for number, (first, last) in enumerate(bounds(len(side.lengths), count))
    ]


def bounds(texts: int, parts: int) -> Iterator[tuple[int, int]]:
    """The first text of each part, and the first that is no more of it."""
    return pairwise(texts * number // parts for number in range(parts + 1))
