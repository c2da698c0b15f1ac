"""What more workers would make, from the readings of a comparison."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.benchmarks.strategies.scale import (
    AVERAGED_ARRAYS,
    Load,
    Network,
    pays_until,
    predicted_rate,
)
from pipelines.benchmarks.strategies.strategy import Strategy
from pipelines.benchmarks.strategies.trial import Reading

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
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


def load_of(
    readings: Sequence[Reading], strategy: Strategy, step_examples: int, round_steps: int
) -> Load | None:
    """What one worker does in a step, from trials with several; None where they do not tell.

    Args:
        readings: Of a strategy, all with the same number of workers, two at least.
        strategy: It.
        step_examples: Examples of a whole step.
        round_steps: Steps between two averages, where it averages.
    """
    workers, scheme = readings[0].workers, scheme_of(strategy)
    arithmetic = [second for one in readings for second in one.arithmetic]
    sent = [one.bytes_per_step for one in readings if one.bytes_per_step is not None]
    if len(sent) < len(readings) or not all(one.arithmetic and one.exchange for one in readings):
        return None
    servers = int(strategy.training["parameter_servers"])
    crossed, cost = _times_sent(scheme, workers, round_steps, servers)
    payload = statistics.median(sent) / crossed
    exchange = statistics.median(exchange_seconds(one, scheme) for one in readings)
    return Load(
        arithmetic=arithmetic,
        payload=payload,
        seconds_per_byte=exchange / (payload * cost),
        # Of servers a step is one worker's.
        examples=step_examples if scheme == "servers" else step_examples // workers,
        servers=servers,
        round_steps=round_steps,
    )


def _times_sent(scheme: str, workers: int, round_steps: int, servers: int) -> tuple[float, float]:
    """How often the payload passes the network in a step, and a processor one after the other.

    The first is of all workers together, the second as the simulation counts it for one of them.
    """
    averaged = 2.0 * AVERAGED_ARRAYS * workers / round_steps
    return {
        "all-reduce": (2.0 * (workers - 1), 2.0 * (workers - 1) / workers),
        "sharded": (3.0 * (workers - 1), 3.0 * (workers - 1) / workers),
        "averaging": (averaged, averaged),
        # Each server has its part, all at the same time.
        "servers": (2.0, 1.0 / servers),
    }[scheme]


def exchange_seconds(reading: Reading, scheme: str) -> float:
    """Seconds of communication of a worker's step, without those it waited for slower workers."""
    exchange = statistics.fmean(reading.exchange)
    if scheme == "servers":
        return exchange
    whole = len(reading.arithmetic) // reading.workers * reading.workers
    by_step = np.asarray(reading.arithmetic[:whole]).reshape(-1, reading.workers)
    waited = float((by_step.max(axis=1) - by_step.mean(axis=1)).mean())
    return max(exchange - waited, 0.0)


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
        own = [one for one in readings if one.strategy == name]
        most = max((one.workers for one in own), default=1)
        several = [one for one in own if one.workers == most > 1]
        load = load_of(several, strategy, step_examples, round_steps) if several else None
        if load is None:
            continue
        scheme = scheme_of(strategy)
        for network, link in NETWORKS.items():
            rates = {count: predicted_rate(scheme, load, link, count) for count in COUNTS}
            found.append(Projection(name, scheme, network, rates))
    return found
