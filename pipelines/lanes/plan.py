"""The batch plan: the examples of each granule, and the granules of each step.

Pure functions over numbers; nothing here knows Spark, files or a framework.

Examples are ordered by length bucket. A **segment** is a run of that order and fills the rows of
one bucket. Examples beyond a bucket's whole rows move up into the next longer bucket, at the cost
of some padding. Examples beyond the longest bucket are left over, and counted.

An epoch has as many steps as the lanes give, whatever the weights of several sources; each source
gets its weight's share of them. A small source of large weight is read several times in an epoch.
Of a large source of small weight, each epoch reads on where the one before ended. A source's steps
are a stream of permutations of all its steps, so none comes again before all others.

Within an epoch the steps of a source are spread evenly, each at a random time of its own part of
the epoch (stratified sampling). So any stretch of steps, and a run that ends early, has about the
configured share of each source. Shares would wander if each step were drawn by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, kw_only=True)
class SourceLanes:
    """One of several sources of examples, as the lanes hold it.

    Attributes:
        first_row: Number of its first row; its rows are contiguous.
        examples: Its examples before any were left over.
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
        """The optional parts of its examples, under the manifest's names."""
        names = ("paired", "negatives", "scored", "candidates_scored")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """A source's part in the order of the steps.

    Attributes:
        first: Number of its first step in the order of the lanes.
        steps: Steps that its rows give.
        per_epoch: Its steps in each epoch; if more than ``steps``, some repeat.
    """

    first: int
    steps: int
    per_epoch: int


class EpochOrder(NamedTuple):
    """The steps of an epoch, in their order.

    Attributes:
        steps: int64 [steps], numbers in the order of the lanes.
        sources: int64 [steps], the source of each.
        visits: int64 [steps], complete passes over its source before it.
    """

    steps: np.ndarray
    sources: np.ndarray
    visits: np.ndarray


def steps_by_weight(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Share steps out by weight, each number less than one away from its exact share.

    Hamilton's method: round each share down, then add one to those with the largest remainders.
    """
    exact = np.array(weights, np.float64) * (total / sum(weights))
    counts = np.floor(exact).astype(np.int64)
    # Stable, so that of equal remainders the first source's counts.
    largest = np.argsort(counts - exact, kind="stable")
    counts[largest[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


def epoch_order(shares: Sequence[SourceShare], seed: int, epoch: int) -> EpochOrder:
    """Return the order of an epoch's steps; it follows from the arguments alone."""
    # A last word above 0, since numpy's seeds are the same with and without zeros behind them.
    times = np.random.Generator(np.random.PCG64([seed, epoch, len(shares) + 1]))
    drawn = [_stream(share, (seed, number + 1), epoch) for number, share in enumerate(shares)]
    spread = [(np.arange(len(steps)) + times.random(len(steps))) / len(steps) for steps, _ in drawn]
    order = np.argsort(np.concatenate(spread), kind="stable")
    sources = np.repeat(np.arange(len(shares)), [share.per_epoch for share in shares])
    steps, visits = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    return EpochOrder(steps[order], sources[order], visits[order])


def _stream(share: SourceShare, seed: tuple[int, int], epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a source's steps of an epoch, and the earlier visits of each.

    `seed` is the run's, with a number of the source above 0.
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


EVEN_TOKENS = 512
"""Length up to which all buckets have one width."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The rows of one length bucket.

    Attributes:
        length: Most tokens that the granules are padded to.
        rows: Rows of this bucket; each is one granule in every lane.
        first_row: Number of its first row in a lane.
        first_example: Position of its first example in the order by bucket.
        examples: ``rows * lanes * granule``.
    """

    length: int
    rows: int
    first_row: int
    first_example: int
    examples: int


def bucket_length(length: int, bucket: int) -> int:
    """Round a length in tokens up to its bucket's edge."""
    return -(-length // bucket) * bucket


def bucket_table(longest: int, bucket: int, growth: float) -> tuple[int, ...]:
    """Return the bucket edge of each length.

    Buckets have one width up to :data:`EVEN_TOKENS`. From there on each edge is ``growth`` times
    the one before, rounded up to a multiple of the width. Texts of thousands of tokens then have
    about a hundred buckets, not a thousand, with more rows each.

    Args:
        bucket: Width of a bucket, in tokens, and the unit of all edges.
        growth: 1 gives all buckets one width.

    Returns:
        The edge for lengths of 1 to ``bucket`` tokens, of the next ``bucket`` lengths, and so on up
        to the longest.
    """
    table: list[int] = []
    while len(table) * bucket < longest:
        edge = len(table) * bucket
        grown = bucket_length(math.ceil(edge * growth), bucket) if edge >= EVEN_TOKENS else 0
        after = max(edge + bucket, grown)
        table += [after] * ((after - edge) // bucket)
    return tuple(table)


def plan_sources(
    counts: Sequence[Mapping[int, int]], lanes: int, granule: int
) -> tuple[tuple[Segment, ...], ...]:
    """Plan the rows of each source, one source after the other.

    Takes the examples of each source by bucket length; returns its segments, with positions in the
    order by source and bucket.
    """
    planned: list[tuple[Segment, ...]] = []
    first_row = first_example = 0
    for source_counts in counts:
        segments = plan_segments(source_counts, lanes, granule)
        moved = (
            replace(
                segment,
                first_row=segment.first_row + first_row,
                first_example=segment.first_example + first_example,
            )
            for segment in segments
        )
        planned.append(tuple(moved))
        first_row += sum(segment.rows for segment in segments)
        first_example += sum(source_counts.values())
    return tuple(planned)


def plan_segments(counts: Mapping[int, int], lanes: int, granule: int) -> tuple[Segment, ...]:
    """Plan the rows of examples, given their number by bucket length.

    Returns one segment per bucket that fills at least one row, shortest first. Examples at
    positions behind the last segment are left over: fewer than one row's.
    """
    segments: list[Segment] = []
    seen = taken = rows = 0
    for length in sorted(counts):
        seen += counts[length]
        new_rows = (seen - taken) // (lanes * granule)
        if new_rows:
            examples = new_rows * lanes * granule
            segments.append(
                Segment(
                    length=length,
                    rows=new_rows,
                    first_row=rows,
                    first_example=taken,
                    examples=examples,
                )
            )
            taken += examples
            rows += new_rows
    return tuple(segments)


def choose_lanes(
    examples: int, granule: int, *, most: int, granules_per_step: int, rows: int = 32
) -> int:
    """Return ``most``, or for a small corpus a divisor of it, as the number of lanes.

    A corpus needs many rows, since rows are never mixed and up to one row's examples are left over.
    The result is the largest divisor of ``most`` that leaves ``rows`` rows, among the multiples of
    ``granules_per_step``, so that such steps fit. If none does, it is the smallest such multiple;
    without any multiple, the same choice among all divisors.
    """
    divisors = [count for count in range(1, most + 1) if most % count == 0]
    candidates = [count for count in divisors if count % granules_per_step == 0] or divisors
    fitting = [count for count in candidates if examples >= count * granule * rows]
    return max(fitting) if fitting else min(candidates)


@dataclass(frozen=True, kw_only=True)
class Places:
    """The places of examples: lane (int32), its row (int64), and slot in the granule (int32)."""

    lane: np.ndarray
    row: np.ndarray
    slot: np.ndarray


def deal(
    positions: np.ndarray, segments: Sequence[Segment], lanes: int, granules_per_step: int
) -> Places:
    """Deal examples ordered by segment, and within a segment by group.

    Neighbours go to a segment's rows in turn, after each round of rows to the next step of each
    row, and after each round of steps to the next granule of each. So members of a group, being
    neighbours, share a granule only if they outnumber the segment's granules, and a step only if
    they outnumber its steps. If they do not outnumber its rows, they share no row, and so no step
    of any other size.

    `positions`, int64 [examples], are places in the order, from 0. The granules of a step are of
    adjacent lanes; ``granules_per_step`` divides ``lanes``.
    """
    # `positions` skip the left-over examples, which `Segment.first_example` counts.
    taken = np.cumsum([0, *(segment.examples for segment in segments)])
    first_example = taken[:-1]
    segment = np.searchsorted(first_example, positions, side="right") - 1
    rows = np.array([segment.rows for segment in segments], np.int64)[segment]
    first_row = np.array([segment.first_row for segment in segments], np.int64)[segment]
    turn, row = np.divmod(positions - first_example[segment], rows)
    slot, granule = np.divmod(turn, lanes)
    return Places(
        lane=lane_order(lanes, granules_per_step)[granule].astype(np.int32),
        row=first_row + row,
        slot=slot.astype(np.int32),
    )


def lane_order(lanes: int, granules_per_step: int) -> np.ndarray:
    """Return the order in which the granules of a row are dealt to, int64 [lanes].

    The digits of 0, 1, 2 … in a mixed radix, reversed (Halton, 1960), so that neighbours are far
    apart. The radices of the number of steps come first: as many neighbours as a row has steps are
    in different steps, and the same holds for step sizes in between. ``granules_per_step`` divides
    ``lanes``.
    """
    order, rest, width = np.zeros(lanes, np.int64), np.arange(lanes), lanes
    steps = lanes // granules_per_step
    for factor in (*_prime_factors(steps), *_prime_factors(granules_per_step)):
        width //= factor
        order += rest % factor * width
        rest //= factor
    return order


def _prime_factors(number: int) -> Iterator[int]:
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor
            number //= factor
        factor += 1


def count_same_group_in_step(members: int, steps: int) -> int:
    """Count the `members` of a group in a segment that share a step with another of it.

    Assumes the order of :func:`deal`.
    """
    each, fuller_steps = divmod(members, steps)
    return members if each > 1 else each * 2 * fuller_steps


@dataclass(frozen=True, kw_only=True)
class GranuleAddress:
    """The place of a granule: the row of a lane."""

    lane: int
    row: int


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One optimiser update.

    An epoch has as many steps as the lanes give. `index` and `epoch` count from 0; `granules` are
    in the order of their lanes, and of one source. `visit` counts the complete passes over that
    source before this step; with one source it is the epoch.
    """

    index: int
    epoch: int
    granules: tuple[GranuleAddress, ...]
    source: int
    visit: int


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The order of all steps of a run; it follows from these numbers alone.

    `granules_per_step` divides ``lanes``; `seed` permutes the steps of each epoch; `sources` is
    empty if there is only one.
    """

    lanes: int
    rows: int
    granules_per_step: int
    seed: int
    sources: tuple[SourceShare, ...] = ()

    def __post_init__(self) -> None:
        assert self.lanes % self.granules_per_step == 0, "granules_per_step must divide lanes"

    @property
    def steps_per_row(self) -> int:
        """Steps that one row gives."""
        return self.lanes // self.granules_per_step

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the lanes."""
        return self.rows * self.steps_per_row

    def _order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch's steps; the same for all workers.

        It mixes steps, not only rows: the steps of a row have one length and would follow one
        another.
        """
        if self.sources:
            return epoch_order(self.sources, self.seed, epoch)
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        steps = generator.permutation(self.steps_per_epoch)
        return EpochOrder(steps, np.zeros_like(steps), np.full_like(steps, epoch))

    def steps(self, first: int, last: int) -> Iterator[StepPlan]:
        """Yield the steps ``first`` to ``last - 1`` of the run, in order."""
        order, order_epoch = self._order(0), 0
        for index in range(first, last):
            epoch, within = divmod(index, self.steps_per_epoch)
            if epoch != order_epoch:
                order, order_epoch = self._order(epoch), epoch
            row, turn = divmod(int(order.steps[within]), self.steps_per_row)
            lanes = range(turn * self.granules_per_step, (turn + 1) * self.granules_per_step)
            yield StepPlan(
                index=index,
                epoch=epoch,
                granules=tuple(GranuleAddress(lane=lane, row=row) for lane in lanes),
                source=int(order.sources[within]),
                visit=int(order.visits[within]),
            )


def share(step: StepPlan, rank: int, workers: int) -> tuple[GranuleAddress, ...]:
    """Return the granules of a step that one worker computes.

    A worker always has the same lanes, so each lane is read by one worker only. `workers` divides
    the granules of the step.
    """
    each = len(step.granules) // workers
    return step.granules[rank * each : (rank + 1) * each]


def first_lane(rank: int, workers: int, granules_per_step: int) -> int:
    """Return the first lane that a worker reads, to name it in an error."""
    return rank * (granules_per_step // workers)


def noise_seed(seed: int, epoch: int, granule: int, site: int = 0) -> tuple[int, int]:
    """Return two 32-bit numbers that seed a granule's noise, on whichever worker.

    `epoch` counts earlier passes over the granule's source, since each pass has fresh noise;
    `granule` is ``row * lanes + lane``; `site` separates uses within a granule.
    """
    state = np.random.SeedSequence([seed, epoch, granule, site]).generate_state(2)
    low, high = (int(word) & 0x7FFFFFFF for word in state)
    return low, high
