"""What more workers would make, from the readings of a comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.benchmarks.strategies.scale import (
    AVERAGED_ARRAYS,
    STEPS,
    Load,
    Network,
    pays_until,
    predicted_rate,
    served,
)
from pipelines.benchmarks.strategies.strategy import Strategy
from pipelines.benchmarks.strategies.trial import Reading

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_FREE = Network(bandwidth=math.inf, latency=0.0)
"""The loopback interface, whose costs are those of processors."""
_HALVINGS = 40
TOLD = (8, 64, 512)
"""Numbers of workers whose rates are told in a table."""
NETWORKS: Mapping[str, Network] = {
    "10 Gbit/s, 0.1 ms": Network(bandwidth=1.25e9, latency=1e-4),
    "1 Gbit/s, 0.5 ms": Network(bandwidth=1.25e8, latency=5e-4),
}


@dataclass(frozen=True)
class Projection:
    """What more workers of a strategy would make.

    Attributes:
        strategy: Its name.
        scheme: How its workers exchange; see :mod:`pipelines.benchmarks.strategies.scale`.
        network: A key of :data:`NETWORKS`.
        rates: Examples per second by the number of workers.
    """

    strategy: str
    scheme: str
    network: str
    rates: Mapping[int, float]

    @property
    def pays_until(self) -> int:
        """From how many workers on more of them stop paying."""
        return pays_until(self.rates)


def scheme_of(strategy: Strategy) -> str:
    """How the workers of a strategy exchange what they have computed."""
    training = strategy.training
    if training["mode"] != "sync":
        return "servers"
    if training["engine"] == "elephas":
        return "averaging"
    return "sharded" if training["sharding"] == "parameters" else "all-reduce"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The readings that tell what a worker of a strategy does.

    Attributes:
        several: With several workers, all with the same number of them.
        alone: With one worker: it shares servers with nobody.
        unsharded: Of the same engine with as many workers, each of which holds all weights: where
            weights are sharded an engine cannot tell the exchange from the arithmetic.
    """

    several: Sequence[Reading]
    alone: Sequence[Reading] = ()
    unsharded: Sequence[Reading] = ()


def load_of(
    evidence: Evidence, strategy: Strategy, step_examples: int, round_steps: int
) -> Load | None:
    """What one worker does in a step; None where the readings do not tell.

    Args:
        evidence: Of a strategy.
        strategy: It.
        step_examples: Examples of a whole step.
        round_steps: Steps between two averages, where it averages.
    """
    workers, scheme = evidence.several[0].workers, scheme_of(strategy)
    sent = [one.bytes_per_step for one in evidence.several if one.bytes_per_step is not None]
    if len(sent) < len(evidence.several):
        return None
    servers = int(strategy.training["parameter_servers"])
    blank = Load(
        computing=(),
        payload=statistics.median(sent) / _times_sent(scheme, workers, round_steps),
        seconds_per_byte=0.0,
        # Of servers a step is one worker's.
        examples=step_examples if scheme == "servers" else step_examples // workers,
        servers=servers,
        round_steps=round_steps,
    )
    return _CALIBRATIONS[scheme](blank, evidence, workers)


def _times_sent(scheme: str, workers: int, round_steps: int) -> float:
    """How often the payload passes the network in a step, of all workers together."""
    return {
        "all-reduce": 2.0 * (workers - 1),
        "sharded": 3.0 * (workers - 1),
        "averaging": 2.0 * AVERAGED_ARRAYS * workers / round_steps,
        "servers": 2.0,
    }[scheme]


def exchange_seconds(readings: Sequence[Reading], block: int = 1) -> float | None:
    """Seconds of exchange of a worker's step, without those it waited for slower workers.

    Args:
        readings: Of a strategy; the median of them counts.
        block: Steps after which all wait for the slowest.

    Returns:
        None where there are no readings, or one of them does not tell it.
    """
    found = [_exchange_seconds(one, block) for one in readings]
    known = [one for one in found if one is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


def _exchange_seconds(reading: Reading, block: int) -> float | None:
    steps = min((len(rank) for rank in reading.computing), default=0) // block * block
    if not steps:
        return None
    computing = np.asarray([rank[:steps] for rank in reading.computing])
    by_block = computing.reshape(len(computing), -1, block).sum(axis=2)
    waited = float((by_block.max(axis=0) - by_block.mean(axis=0)).mean()) / block
    exchange = float(np.mean([rank[:steps] for rank in reading.exchange]))
    return max(exchange - waited, 0.0)


def _seconds_at_servers(readings: Sequence[Reading]) -> float | None:
    """Seconds of exchange of a step, where nobody waits for the slowest."""
    found = [[second for rank in one.exchange for second in rank] for one in readings]
    if not found or not all(found):
        return None
    return statistics.median(statistics.fmean(one) for one in found)


def _computing(readings: Sequence[Reading]) -> list[float]:
    return [second for one in readings for rank in one.computing for second in rank]


def _of_ring(load: Load, evidence: Evidence, workers: int) -> Load | None:
    exchange = exchange_seconds(evidence.several)
    if exchange is None:
        return None
    handled = load.payload * 2 * (workers - 1) / workers
    return replace(
        load, computing=_computing(evidence.several), seconds_per_byte=exchange / handled
    )


def _of_sharded(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """What a step takes longer than where all weights are whole is the exchange."""
    known = [one.computing for one in evidence.unsharded] + [
        one.step_seconds for one in evidence.several
    ]
    if not evidence.unsharded or not all(known):
        return None
    whole = [np.asarray(one.computing).max(axis=0).mean() for one in evidence.unsharded]
    sharded = [np.asarray(one.step_seconds).mean() for one in evidence.several]
    exchange = max(float(np.median(sharded) - np.median(whole)), 0.0)
    handled = load.payload * 3 * (workers - 1) / workers
    return replace(
        load, computing=_computing(evidence.unsharded), seconds_per_byte=exchange / handled
    )


def _of_averaging(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """What grows with the workers is the server's, who takes them one after the other."""
    alone = exchange_seconds(evidence.alone, load.round_steps)
    several = exchange_seconds(evidence.several, load.round_steps)
    if alone is None or several is None:
        return None
    each = max(several - alone, 0.0) / (workers - 1)
    return replace(
        load,
        computing=_computing(evidence.several),
        seconds_per_byte=each * load.round_steps / (2 * AVERAGED_ARRAYS * load.payload),
        own_seconds=max(several - each * workers, 0.0) * load.round_steps,
    )


def _of_servers(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """Bisects how much of a worker's exchange is the servers', who take one after the other.

    With it the simulation spends as much on the exchange as was measured, with one worker and
    with several.
    """
    alone = _seconds_at_servers(evidence.alone)
    several = _seconds_at_servers(evidence.several)
    if alone is None or several is None:
        return None
    load = replace(load, computing=_computing(evidence.several))
    seconds = np.random.default_rng(0).choice(np.asarray(load.computing), (STEPS, workers))

    def shared(serial: float) -> Load:
        own = max(min(alone, several) - serial, 0.0)
        each = serial * load.servers / load.payload
        return replace(load, seconds_per_byte=each, own_seconds=own)

    low, high = 0.0, several
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if served(shared(middle), _FREE, seconds).exchange < several:
            low = middle
        else:
            high = middle
    return shared(high)


_CALIBRATIONS: Mapping[str, Callable[[Load, Evidence, int], Load | None]] = {
    "all-reduce": _of_ring,
    "sharded": _of_sharded,
    "averaging": _of_averaging,
    "servers": _of_servers,
}
"""By scheme: what completes a load, whose payload is known, from the readings."""


def projections(
    readings: Sequence[Reading],
    strategies: Mapping[str, Strategy],
    step_examples: int,
    round_steps: int,
) -> list[Projection]:
    """Of each strategy that was measured with several workers, on each network.

    Args:
        readings: Of all trials.
        strategies: By name.
        step_examples: Examples of a step.
        round_steps: ``training.round_steps``.
    """
    found = []
    for name, strategy in strategies.items():
        evidence = _evidence(readings, strategies, name)
        load = load_of(evidence, strategy, step_examples, round_steps) if evidence else None
        if load is None:
            continue
        scheme = scheme_of(strategy)
        for network, link in NETWORKS.items():
            rates = {count: predicted_rate(scheme, load, link, count) for count in COUNTS}
            found.append(Projection(name, scheme, network, rates))
    return found


def _evidence(
    readings: Sequence[Reading], strategies: Mapping[str, Strategy], name: str
) -> Evidence | None:
    """That of the greatest number of workers; None where there is none with several."""
    most = max((one.workers for one in readings if one.strategy == name), default=1)
    if most == 1:
        return None

    def of(strategy: str | None, workers: int) -> list[Reading]:
        return [one for one in readings if (one.strategy, one.workers) == (strategy, workers)]

    whole = {**strategies[name].training, "sharding": "none"}
    unsharded = next(
        (own for own, one in strategies.items() if one.training == whole and not one.is_peer), None
    )
    return Evidence(several=of(name, most), alone=of(name, 1), unsharded=of(unsharded, most))
