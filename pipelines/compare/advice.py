"""What to take, by a written rule from the figures of a comparison.

The rule, in its order:

1. A strategy counts if its loss over the last :data:`LAST` of the steps is at most
   :data:`LOSS_ROOM` above the lowest of all strategies, in words: equal examples have taught it as
   much. Losses differ by chance, so the room is never less than the spread of the rounds of the one
   with the lowest, nor than :data:`ERRORS` standard errors of the mean difference step by step.
2. Of those that count the fastest wins, by the median of its examples per second over the rounds,
   with any number of workers. One that is at most :data:`RATE_ROOM` slower is as fast; among those
   that are as fast the one with fewer workers wins, then the one that stands first in the list of
   strategies, which begins with what needs least.
3. If it has several workers, and makes less than :data:`PAYS` times the examples per second of the
   fastest strategy that has one, that one is to be taken: more workers hardly pay.
4. Other libraries' trainers are not advised, since their losses are of other batches: the fastest
   of them is told beside what is taken.
5. If numbers travel for more than :data:`TRAVELS` of its time, more workers on the same network
   will not pay for long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.compare.trial import Reading

LAST = 0.25
LOSS_ROOM = 0.05
ERRORS = 2.0
RATE_ROOM = 0.03
PAYS = 1.2
TRAVELS = 0.3


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A strategy with some number of workers, over all rounds; its figures are medians.

    Attributes:
        rounds: How often it was measured.
        spread: Lowest and highest examples per second.
        loss: Over the last :data:`LAST` of the steps.
        loss_spread: Lowest and highest loss.
        last_losses: Of these steps one by one, the means of the rounds.
        communication: The share; None where it is not known.
    """

    strategy: str
    workers: int
    rounds: int
    examples_per_second: float
    spread: tuple[float, float]
    loss: float
    loss_spread: tuple[float, float]
    last_losses: tuple[float, ...]
    communication: float | None


def last_losses(reading: Reading) -> list[float]:
    """Return the losses of the last :data:`LAST` of the steps: one step's is of one batch."""
    losses = [loss for _, _, loss in reading.curve]
    return losses[-max(1, round(LAST * len(losses))) :]


def summaries(readings: Sequence[Reading]) -> list[Summary]:
    """Return a summary for each strategy and number of workers, in the order of the readings."""
    found: dict[tuple[str, int], list[Reading]] = {}
    for reading in readings:
        found.setdefault((reading.strategy, reading.workers), []).append(reading)
    return [_summary(own) for own in found.values()]


def _summary(readings: Sequence[Reading]) -> Summary:
    rates = [one.examples_per_second for one in readings]
    by_round = [last_losses(one) for one in readings]
    losses = [statistics.fmean(one) for one in by_round]
    shares = [one.communication for one in readings if one.communication is not None]
    return Summary(
        strategy=readings[0].strategy,
        workers=readings[0].workers,
        rounds=len(readings),
        examples_per_second=statistics.median(rates),
        spread=(min(rates), max(rates)),
        loss=statistics.median(losses),
        loss_spread=(min(losses), max(losses)),
        last_losses=tuple(statistics.fmean(step) for step in zip(*by_round, strict=True)),
        communication=statistics.median(shares) if len(shares) == len(readings) else None,
    )


def advice(found: Sequence[Summary], peers: Sequence[Summary] = ()) -> list[str]:
    """Return the advice by the rule of this module; nothing without figures.

    `found` are this package's strategies, `peers` other libraries' trainers.
    """
    if not found:
        return []
    counts = [one for one in found if _learns(one, found)]
    fastest = _winner(counts)
    alone = [one for one in counts if one.workers == 1]
    taken = _winner(alone) if alone and not _pays(fastest, alone) else fastest
    sentences = [
        f"Take {taken.strategy} with {told_workers(taken.workers)}: "
        f"{taken.examples_per_second:,.0f} examples/s."
    ]
    sentences += _compared(taken, fastest, alone, has_several=len(alone) < len(counts))
    if peers:
        peer = max(peers, key=lambda one: one.examples_per_second)
        ratio = taken.examples_per_second / peer.examples_per_second
        sentences.append(
            f"{peer.strategy} with {told_workers(peer.workers)} makes "
            f"{peer.examples_per_second:,.0f}: that is {ratio:.2f} times as many."
        )
    if taken.communication is not None and taken.communication > TRAVELS:
        sentences.append(
            f"Its workers spend {100 * taken.communication:.0f} % of their time on communication: "
            "on this network more of them will not pay for long."
        )
    slow = [one for one in found if one not in counts]
    if slow:
        names = ", ".join(dict.fromkeys(one.strategy for one in slow))
        sentences.append(f"Equal examples have taught less with: {names}.")
    return sentences


def _learns(one: Summary, found: Sequence[Summary]) -> bool:
    least = min(found, key=lambda other: other.loss)
    spread = least.loss_spread[1] - least.loss_spread[0]
    # Each step is of the same examples.
    differences = [a - b for a, b in zip(one.last_losses, least.last_losses, strict=True)]
    count = len(differences)
    chance = ERRORS * statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    return one.loss <= least.loss + max(LOSS_ROOM * abs(least.loss), spread, chance)


def _winner(found: Sequence[Summary]) -> Summary:
    """Choose by the second point of the rule; `found` is in the order of the strategies."""
    most = max(one.examples_per_second for one in found)
    as_fast = [one for one in found if one.examples_per_second >= (1 - RATE_ROOM) * most]
    return min(as_fast, key=lambda one: one.workers)


def _pays(one: Summary, alone: Sequence[Summary]) -> bool:
    """Return whether it is faster by far than all that have one worker."""
    return one.examples_per_second >= PAYS * _winner(alone).examples_per_second


def _compared(
    taken: Summary, fastest: Summary, alone: Sequence[Summary], *, has_several: bool
) -> list[str]:
    """Say what more workers bring; nothing where only one or only several were measured."""
    if not alone:
        return []
    single = _winner(alone)
    ratio = fastest.examples_per_second / single.examples_per_second
    if fastest.workers == 1:
        return ["More workers are no faster here."] if has_several else []
    if taken is fastest:
        share = 100 * ratio / fastest.workers
        return [
            f"That is {ratio:.2f} times the {single.examples_per_second:,.0f} of {single.strategy} "
            f"with one, {share:.0f} % of as many times as there are workers."
        ]
    return [
        f"{fastest.strategy} with {told_workers(fastest.workers)} makes {ratio:.2f} times that: "
        "more workers hardly pay here."
    ]


def told_workers(count: int) -> str:
    """Format a number of workers."""
    return "one worker" if count == 1 else f"{count} workers"


def efficiency(found: Sequence[Summary]) -> Mapping[tuple[str, int], float]:
    """Return examples per second and worker, relative to the strategy with one worker."""
    alone = {one.strategy: one.examples_per_second for one in found if one.workers == 1}
    return {
        (one.strategy, one.workers): one.examples_per_second / one.workers / alone[one.strategy]
        for one in found
        if one.strategy in alone
    }
