"""What more workers would bring: a simulation from what was measured with few.

What a worker does by itself is drawn from the seconds that were measured, so that stragglers are as
frequent as they were. What travels is what was seen to travel, over links of a given bandwidth and
latency, one for each worker and server, full duplex. Each scheme of exchange is simulated as it is
built here:

- ``all-reduce``: every step waits for the slowest worker; then gradients go around a ring in
  :math:`2 (W - 1)` rounds of a part each (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", JPDC 69, 2009).
- ``sharded``: weights are gathered twice and gradients scattered once a step, :math:`3 (W - 1)`
  rounds of a part each (Rajbhandari et al., "ZeRO", SC 2020, section 7, with all state split).
- ``averaging``: workers send weights and both moments to one server every so many steps, and get
  their mean back.
- ``servers``: each worker pulls, computes and pushes by itself; a server's link and its processor
  serve one worker after the other, in the order in which they come (discrete events).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

STEPS = 60
"""Simulated steps of each worker."""
AVERAGED_ARRAYS = 3
"""Weights, first and second moments."""
STOPS_PAYING = 0.5
"""Share of what a worker made before that a further one must make."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What connects machines.

    Attributes:
        bandwidth: Bytes per second of each link, in each direction.
        latency: Seconds of a message, one way.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one worker does in a step.

    Attributes:
        computing: Seconds without any exchange, of several steps; what is simulated is drawn from
            them.
        payload: Bytes of the gradients, and of the weights.
        seconds_per_byte: Of a processor, for what is sent, received and added; where there are
            servers, or one that averages, of theirs, which serve one worker after the other.
        examples: In a step of one worker.
        own_seconds: That a worker spends on each exchange with a server, beside other workers.
        servers: That share the parameters, where there are some.
        round_steps: Steps between two averages, where there are some.
    """

    computing: Sequence[float]
    payload: float
    seconds_per_byte: float
    examples: int
    own_seconds: float = 0.0
    servers: int = 1
    round_steps: int = 8


Scheme = Callable[[Load, Network, int, np.random.Generator], float]
"""Seconds of a step of each of so many workers, the mean of :data:`STEPS` at least."""


def predicted_rate(
    scheme: str, load: Load, network: Network, workers: int, seed: int = 17
) -> float:
    """Examples per second of all workers together.

    Args:
        scheme: A key of :data:`SCHEMES`.
        load: Of each worker, who has so many examples a step however many there are.
        network: That they are connected by.
        workers: How many there are.
        seed: Of what is drawn.
    """
    seconds = SCHEMES[scheme](load, network, workers, np.random.default_rng(seed))
    return workers * load.examples / seconds


def pays_until(rates: Mapping[int, float]) -> int:
    """The number of workers from which on more of them stop paying.

    Args:
        rates: Examples per second by the number of workers.

    Returns:
        The least one beyond which further workers always make less than :data:`STOPS_PAYING` of
        what one made before; the last where that is never so.
    """
    counts = sorted(rates)
    found = counts[-1]
    for fewer, more in reversed([*pairwise(counts)]):
        further = (rates[more] - rates[fewer]) / (more - fewer)
        if further >= STOPS_PAYING * rates[fewer] / fewer:
            break
        found = fewer
    return found


def _drawn(
    load: Load, workers: int, generator: np.random.Generator, steps: int = STEPS
) -> np.ndarray:
    """Seconds of each step and worker without the exchange."""
    return generator.choice(np.asarray(load.computing), (steps, workers))


def _rounds(load: Load, network: Network, workers: int, times: int) -> float:
    """Seconds in which parts go around a ring so many times, all links at once."""
    if workers == 1:
        return 0.0
    part = load.payload / workers
    each = network.latency + part / network.bandwidth + part * load.seconds_per_byte
    return times * (workers - 1) * each


def _all_reduce(
    load: Load, network: Network, workers: int, generator: np.random.Generator
) -> float:
    slowest = _drawn(load, workers, generator).max(axis=1).mean()
    return float(slowest + _rounds(load, network, workers, 2))


def _sharded(load: Load, network: Network, workers: int, generator: np.random.Generator) -> float:
    slowest = _drawn(load, workers, generator).max(axis=1).mean()
    return float(slowest + _rounds(load, network, workers, 3))


def _averaging(load: Load, network: Network, workers: int, generator: np.random.Generator) -> float:
    rounds = -(-STEPS // load.round_steps)
    seconds = _drawn(load, workers, generator, rounds * load.round_steps)
    by_round = seconds.reshape(rounds, load.round_steps, workers)
    slowest = float(by_round.sum(axis=1).max(axis=1).mean())
    sent = AVERAGED_ARRAYS * load.payload * workers
    # All of it passes the server's link, in and then out, and its processor.
    exchange = 2 * (network.latency + sent / network.bandwidth + sent * load.seconds_per_byte)
    return (slowest + load.own_seconds + exchange) / load.round_steps


class _Server:
    """One of those that share the parameters: two directions of a link, and a processor."""

    def __init__(self, load: Load, network: Network) -> None:
        part = load.payload / load.servers
        self._travel = part / network.bandwidth
        self._work = part * load.seconds_per_byte
        self._latency = network.latency
        self._sends = self._receives = self._works = 0.0

    def pull(self, now: float) -> float:
        """When a worker that asks now has this part of the parameters."""
        self._sends = max(now + self._latency, self._sends) + self._travel
        return self._sends + self._latency

    def push(self, now: float) -> float:
        """When a worker that sends a gradient now knows that it was applied."""
        self._receives = max(now + self._latency, self._receives) + self._travel
        self._works = max(self._receives, self._works) + self._work
        return self._works + self._latency


def _servers(load: Load, network: Network, workers: int, generator: np.random.Generator) -> float:
    return served(load, network, _drawn(load, workers, generator)).step


class Served(NamedTuple):
    """What comes of a simulation of servers.

    Attributes:
        step: Seconds of a step, until the last worker has made its last one.
        exchange: Seconds that a worker spent on the exchange of a step, on average.
    """

    step: float
    exchange: float


def served(load: Load, network: Network, seconds: np.ndarray) -> Served:
    """Simulates workers at their servers.

    Args:
        load: Of each worker.
        network: That they are connected by.
        seconds: Without the exchange, of each step (rows) and worker (columns).
    """
    steps, workers = seconds.shape
    servers = [_Server(load, network) for _ in range(load.servers)]
    # A worker's own link carries the parts of all servers.
    own = load.payload / network.bandwidth
    events = [(0.0, worker, 0, False) for worker in range(workers)]
    ended = exchanged = 0.0
    while events:
        now, worker, step, computed = heapq.heappop(events)
        if computed:
            applied = max(now + own, *(server.push(now) for server in servers))
            applied += load.own_seconds
            exchanged += applied - now
            if step + 1 < steps:
                heapq.heappush(events, (applied, worker, step + 1, False))
            ended = max(ended, applied)
        else:
            pulled = max(now + own, *(server.pull(now) for server in servers))
            exchanged += pulled - now
            heapq.heappush(events, (pulled + seconds[step, worker], worker, step, True))
    return Served(ended / steps, exchanged / seconds.size)


SCHEMES: Mapping[str, Scheme] = {
    "all-reduce": _all_reduce,
    "sharded": _sharded,
    "averaging": _averaging,
    "servers": _servers,
}
