"""The recommendation from the figures of a comparison, by a written rule.

The rule, in its order:

1. A strategy counts if its loss over the last :data:`LAST` of the steps is at most
   :data:`LOSS_ROOM` above the lowest of all strategies. It has then learnt as much from equal
   examples. Losses vary by chance, so the margin is at least the spread over the rounds of the
   strategy with the lowest loss, and at least :data:`ERRORS` standard errors of the mean
   difference step by step.
2. Of the strategies that count the fastest wins, by the median of its examples per second over the
   rounds, with any number of workers. Strategies at most :data:`RATE_ROOM` slower are as fast.
   Among them the fewest workers win, then the first place in the list of strategies; the list
   begins with the smallest requirements.
3. If the winner has several workers and less than :data:`PAYS` times the examples per second of the
   fastest strategy with one worker, take that strategy: more workers hardly pay.
4. Other libraries' trainers train on other batches, so their losses do not compare. The advice
   never takes them, and only names the fastest.
5. If communication takes more than :data:`TRAVELS` of the workers' time, more workers on the same
   network will soon stop paying.
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
        rounds: Number of measurements.
        spread: Lowest and highest examples per second.
        loss: Over the last :data:`LAST` of the steps.
        loss_spread: Lowest and highest loss.
        last_losses: Of each of these steps, the mean over the rounds.
        communication: Its share of the workers' time; None if unknown.
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
    """Return the losses of the last :data:`LAST` of the steps; each is of one batch only."""
    losses = [loss for _, _, loss in reading.curve]
    return losses[-max(1, round(LAST * len(losses))) :]


def summaries(readings: Sequence[Reading]) -> list[Summary]:
    """Return a summary for each strategy and number of workers, in the order of the readings."""
    found: dict[tuple[str, int], list[Reading]] = {}
    for reading in readings:
        found.setdefault((reading.strategy, reading.workers), []).append(reading)
    return [_summary(rounds) for rounds in found.values()]


def _summary(readings: Sequence[Reading]) -> Summary:
    rates = [reading.examples_per_second for reading in readings]
    by_round = [last_losses(reading) for reading in readings]
    losses = [statistics.fmean(losses) for losses in by_round]
    shares = [reading.communication for reading in readings if reading.communication is not None]
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
    counting = [summary for summary in found if _learns(summary, found)]
    fastest = _winner(counting)
    singles = [summary for summary in counting if summary.workers == 1]
    taken = _winner(singles) if singles and not _pays(fastest, singles) else fastest
    sentences = [
        f"Take {taken.strategy} with {workers_in_words(taken.workers)}: "
        f"{taken.examples_per_second:,.0f} examples/s."
    ]
    sentences += _compared(taken, fastest, singles, has_several=len(singles) < len(counting))
    if peers:
        peer = max(peers, key=lambda summary: summary.examples_per_second)
        ratio = taken.examples_per_second / peer.examples_per_second
        sentences.append(
            f"{peer.strategy} with {workers_in_words(peer.workers)} reaches "
            f"{peer.examples_per_second:,.0f} examples/s; {taken.strategy} has {ratio:.2f} times "
            "that rate."
        )
    if taken.communication is not None and taken.communication > TRAVELS:
        sentences.append(
            f"Its workers spend {100 * taken.communication:.0f} % of their time on communication: "
            "more workers on this network will soon stop paying."
        )
    rejected = [summary for summary in found if summary not in counting]
    if rejected:
        names = ", ".join(dict.fromkeys(summary.strategy for summary in rejected))
        sentences.append(f"Strategies with a higher loss after equal examples: {names}.")
    return sentences


def _learns(summary: Summary, found: Sequence[Summary]) -> bool:
    least = min(found, key=lambda candidate: candidate.loss)
    spread = least.loss_spread[1] - least.loss_spread[0]
    # A step has the same examples with every strategy, so its losses compare in pairs.
    differences = [a - b for a, b in zip(summary.last_losses, least.last_losses, strict=True)]
    count = len(differences)
    chance = ERRORS * statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    return summary.loss <= least.loss + max(LOSS_ROOM * abs(least.loss), spread, chance)


def _winner(found: Sequence[Summary]) -> Summary:
    """Choose by the second point of the rule; `found` is in the order of the strategies."""
    most = max(summary.examples_per_second for summary in found)
    as_fast = [
        summary for summary in found if summary.examples_per_second >= (1 - RATE_ROOM) * most
    ]
    # `min` keeps the first of several, which the rule prefers.
    return min(as_fast, key=lambda summary: summary.workers)


def _pays(summary: Summary, singles: Sequence[Summary]) -> bool:
    """Return whether it is much faster than the summaries with one worker."""
    return summary.examples_per_second >= PAYS * _winner(singles).examples_per_second


def _compared(
    taken: Summary, fastest: Summary, singles: Sequence[Summary], *, has_several: bool
) -> list[str]:
    """Compare one worker with several; empty without measurements of both."""
    if not singles:
        return []
    single = _winner(singles)
    ratio = fastest.examples_per_second / single.examples_per_second
    if fastest.workers == 1:
        return ["More workers are no faster here."] if has_several else []
    if taken is fastest:
        share = 100 * ratio / fastest.workers
        return [
            f"That is {ratio:.2f} times the {single.examples_per_second:,.0f} of {single.strategy} "
            f"with one worker, an efficiency of {share:.0f} %."
        ]
    return [
        f"{fastest.strategy} with {workers_in_words(fastest.workers)} reaches {ratio:.2f} times "
        "that rate: "
        "more workers hardly pay here."
    ]


def workers_in_words(count: int) -> str:
    """Format a number of workers."""
    return "one worker" if count == 1 else f"{count} workers"


def efficiency(found: Sequence[Summary]) -> Mapping[tuple[str, int], float]:
    """Return examples per second and worker, relative to the strategy with one worker."""
    single_rates = {
        summary.strategy: summary.examples_per_second for summary in found if summary.workers == 1
    }
    return {
        (summary.strategy, summary.workers): (
            summary.examples_per_second / summary.workers / single_rates[summary.strategy]
        )
        for summary in found
        if summary.strategy in single_rates
    }
