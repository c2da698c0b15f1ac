"""Several sources of examples: what the lanes hold of each, and which of them a step is of.

Pure functions over numbers. An epoch has as many steps as the lanes give, whatever the weights.
Each source has the number of them that its weight asks for: a small source of a large weight is
read several times in an epoch, and of a large source of a small weight each epoch reads on where
the one before ended. A source's steps are a stream of permutations of all of its steps, so that
none comes again before all others of its source have.

Within an epoch the steps of a source are spread evenly, each at a random time of its own part of
the epoch (stratified sampling). So any stretch of steps has about the asked share of each source,
and a run that ends early too, where drawing each step by itself would give shares that wander.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, kw_only=True)
class SourceLanes:
    """What the lanes hold of one of several sources of examples.

    Attributes:
        name: Of the source.
        first_row: Number of its first row; its rows follow one another.
        rows: Its rows.
        examples: Examples that came in of it.
        tokens: Token ids in its granules.
        paired: Whether its examples have a positive.
        negatives: Hard negatives of each of them.
        scored: Whether they have a score.
        candidates_scored: Whether their positive and each hard negative have one.
    """

    name: str
    first_row: int
    rows: int
    examples: int
    tokens: int
    paired: bool
    negatives: int
    scored: bool
    candidates_scored: bool

    @property
    def has(self) -> Mapping[str, Any]:
        """What its examples have, by the names that a manifest has for it."""
        names = ("paired", "negatives", "scored", "candidates_scored")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """A source's part in the order of the steps.

    Attributes:
        first: Number of its first step in the order of the lanes.
        steps: How many steps its rows give.
        per_epoch: How many steps of each epoch are its own; more than ``steps`` read some twice.
    """

    first: int
    steps: int
    per_epoch: int


class EpochOrder(NamedTuple):
    """The steps of an epoch, in their order.

    Attributes:
        steps: int64 [steps], their numbers in the order of the lanes.
        sources: int64 [steps], the source of each.
        visits: int64 [steps], how often all steps of its source were made before.
    """

    steps: np.ndarray
    sources: np.ndarray
    visits: np.ndarray


def steps_by_weight(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Shares steps out by weight, each number less than one from its exact share.

    Hamilton's method: each source gets its share rounded down, and those with the largest
    remainders one more.

    Args:
        total: Steps to share out.
        weights: Above 0.
    """
    exact = np.array(weights, np.float64) * (total / sum(weights))
    counts = np.floor(exact).astype(np.int64)
    # Stable, so that of equal remainders the first source's counts.
    largest = np.argsort(counts - exact, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


def epoch_order(shares: Sequence[SourceShare], seed: int, epoch: int) -> EpochOrder:
    """The order of an epoch's steps; it follows from the arguments alone.

    Args:
        shares: Of each source.
        seed: Of the run.
        epoch: From 0.
    """
    # A last word above 0, since numpy's seeds are the same with and without zeros behind them.
    times = np.random.Generator(np.random.PCG64([seed, epoch, len(shares) + 1]))
    drawn = [_stream(share, (seed, number + 1), epoch) for number, share in enumerate(shares)]
    spread = [(np.arange(len(one)) + times.random(len(one))) / len(one) for one, _ in drawn]
    order = np.argsort(np.concatenate(spread), kind="stable")
    sources = np.repeat(np.arange(len(shares)), [share.per_epoch for share in shares])
    steps, visits = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return EpochOrder(steps[order], sources[order], visits[order])


def _stream(share: SourceShare, seed: tuple[int, int], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """A source's steps of an epoch, and how often each was made before.

    Args:
        seed: Of the run; and a number of the source, above 0.
    """
    run, source = seed
    begin, end = epoch * share.per_epoch, (epoch + 1) * share.per_epoch
    first, last = begin // share.steps, -(-end // share.steps)
    passes = [
        np.random.Generator(np.random.PCG64([run, visit, source])).permutation(share.steps)
        for visit in range(first, last)
    ]
    within = slice(begin - first * share.steps, end - first * share.steps)
    visits = np.repeat(np.arange(first, last), share.steps)
    return share.first + np.concatenate(passes)[within], visits[within]
