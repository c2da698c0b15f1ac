"""The rates of more workers, simulated from measurements with few.

A worker's computing time is drawn from the measured seconds, which keeps stragglers as frequent as
they were. The measured bytes travel over links of a given bandwidth and latency, one for each
worker and server, full duplex. Each scheme of exchange is simulated as it is built here:

- ``all-reduce``: every step waits for the slowest worker; then gradients go around a ring in
  :math:`2 (W - 1)` rounds of a part each (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", JPDC 69, 2009).
- ``sharded``: weights are gathered twice and gradients scattered once a step, :math:`3 (W - 1)`
  rounds of a part each (Rajbhandari et al., "ZeRO", SC 2020, section 7, with all state split).
- ``averaging``: workers send weights and both moments to one server every so many steps, and get
  their mean back.
- ``servers``: each worker pulls, computes and pushes by itself; a server's link and its processor
  serve one worker after the other, in order of arrival (discrete events).
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelines.compare.strategy import Strategy
from pipelines.compare.trial import Reading

STEPS = 60
"""Simulated steps of each worker."""
ALL_REDUCED, SHARDED = 2, 3
"""How often a payload goes around a ring of workers in a step."""
AVERAGED_ARRAYS = 3
"""Weights, first and second moments."""
STOPS_PAYING = 0.5
"""Share of each worker's former rate that a further worker must add."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TOLD = (8, 64, 512)
"""Numbers of workers in the table of rates."""
_HALVINGS = 40


class Network(NamedTuple):
    """The network: bytes per second of a link and direction, and seconds of a message one way."""

    bandwidth: float
    latency: float


NETWORKS: Mapping[str, Network] = {
    "10 Gbit/s, 0.1 ms": Network(bandwidth=1.25e9, latency=1e-4),
    "1 Gbit/s, 0.5 ms": Network(bandwidth=1.25e8, latency=5e-4),
}
_FREE = Network(bandwidth=math.inf, latency=0.0)
"""The loopback interface: its costs are processor time."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The work of one worker in a step.

    Attributes:
        computing: Measured seconds of several steps without any exchange; the simulation draws from
            them.
        payload: Bytes of the gradients, and of the weights.
        seconds_per_byte: Processor time for bytes sent, received and added; with servers, or one
            that averages, theirs, which serve one worker after the other.
        examples: In a step of one worker.
        own_seconds: That a worker spends on each exchange with a server, beside other workers.
        servers: Number of parameter servers, where there are some.
        round_steps: Steps between two averages, where workers average.
    """

    computing: Sequence[float]
    payload: float
    seconds_per_byte: float
    examples: int
    own_seconds: float = 0.0
    servers: int = 1
    round_steps: int = 8


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The readings from which a strategy's load is computed.

    Attributes:
        several: With several workers, all with the same number of them.
        alone: With one worker, which shares servers with nobody.
        unsharded: Of the same engine with as many workers that each hold all weights: with sharded
            weights an engine cannot tell the exchange from the arithmetic.
    """

    several: Sequence[Reading]
    alone: Sequence[Reading] = ()
    unsharded: Sequence[Reading] = ()


class Scheme(NamedTuple):
    """How workers exchange their results.

    Attributes:
        seconds: Mean seconds of a step with so many workers, over :data:`STEPS` steps at least.
        times_sent: How often the payload passes the network in a step, of all workers together.
        calibrated: Completes a load of known payload from the readings of so many workers; None
            where these do not suffice.
    """

    seconds: Callable[[Load, Network, int, np.random.Generator], float]
    times_sent: Callable[[Load, int], float]
    calibrated: Callable[[Load, Evidence, int], Load | None]


def predicted_rate(
    scheme: str, load: Load, network: Network, workers: int, seed: int = 17
) -> float:
    """Return the examples per second of all workers together, by a scheme of :data:`SCHEMES`.

    Each worker has the given load, with as many examples a step whatever their number.
    """
    seconds = SCHEMES[scheme].seconds(load, network, workers, np.random.default_rng(seed))
    return workers * load.examples / seconds


def pays_until(rates: Mapping[int, float]) -> int:
    """Return the number of workers from which on more of them stop paying.

    Rates are examples per second by the number of workers. The result is the smallest number beyond
    which each further worker always adds less than :data:`STOPS_PAYING` of the former rate per
    worker; the largest number where that never holds.
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
    """Draw the seconds of each step and worker without the exchange."""
    return generator.choice(np.asarray(load.computing), (steps, workers))


def _ring(rounds: int) -> Scheme:
    """Return the scheme in which parts go around a ring so many times, all links at once."""

    def seconds(
        load: Load, network: Network, workers: int, generator: np.random.Generator
    ) -> float:
        slowest = _drawn(load, workers, generator).max(axis=1).mean()
        part = load.payload / workers
        each = network.latency + part / network.bandwidth + part * load.seconds_per_byte
        return float(slowest + rounds * (workers - 1) * each)

    def calibrated(load: Load, evidence: Evidence, workers: int) -> Load | None:
        if rounds == ALL_REDUCED:
            exchange, computing = exchange_seconds(evidence.several), _computing(evidence.several)
        else:
            exchange, computing = _of_sharded(evidence)
        if exchange is None:
            return None
        handled = load.payload * rounds * (workers - 1) / workers
        return replace(load, computing=computing, seconds_per_byte=exchange / handled)

    return Scheme(seconds, lambda load, workers: float(rounds * (workers - 1)), calibrated)


def _of_sharded(evidence: Evidence) -> tuple[float | None, list[float]]:
    """Take the extra time of a step over that with whole weights for the exchange."""
    known = [one.computing for one in evidence.unsharded]
    known += [one.step_seconds for one in evidence.several]
    if not evidence.unsharded or not all(known):
        return None, []
    whole = [np.asarray(one.computing).max(axis=0).mean() for one in evidence.unsharded]
    sharded = [np.asarray(one.step_seconds).mean() for one in evidence.several]
    exchange = max(float(np.median(sharded) - np.median(whole)), 0.0)
    return exchange, _computing(evidence.unsharded)


def _computing(readings: Sequence[Reading]) -> list[float]:
    return [second for one in readings for rank in one.computing for second in rank]


def exchange_seconds(readings: Sequence[Reading], block: int = 1) -> float | None:
    """Return the seconds of exchange of a worker's step, without the wait for slower workers.

    The median of a strategy's readings counts; None without readings, or where one does not have
    them. After `block` steps all wait for the slowest.
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


def _averaging(load: Load, network: Network, workers: int, generator: np.random.Generator) -> float:
    rounds = -(-STEPS // load.round_steps)
    seconds = _drawn(load, workers, generator, rounds * load.round_steps)
    by_round = seconds.reshape(rounds, load.round_steps, workers)
    slowest = float(by_round.sum(axis=1).max(axis=1).mean())
    sent = AVERAGED_ARRAYS * load.payload * workers
    # All of it passes the server's link, in and then out, and its processor.
    exchange = 2 * (network.latency + sent / network.bandwidth + sent * load.seconds_per_byte)
    return (slowest + load.own_seconds + exchange) / load.round_steps


def _of_averaging(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """Attribute to the server the time that grows with the workers, which it serves in turn."""
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


class _Server:
    """One of the parameter servers: two directions of a link, and a processor."""

    def __init__(self, load: Load, network: Network) -> None:
        part = load.payload / load.servers
        self._travel = part / network.bandwidth
        self._work = part * load.seconds_per_byte
        self._latency = network.latency
        self._sends = self._receives = self._works = 0.0

    def pull(self, now: float) -> float:
        """Return when a worker that asks now has this part of the parameters."""
        self._sends = max(now + self._latency, self._sends) + self._travel
        return self._sends + self._latency

    def push(self, now: float) -> float:
        """Return when a worker that sends a gradient now knows that it was applied."""
        self._receives = max(now + self._latency, self._receives) + self._travel
        self._works = max(self._receives, self._works) + self._work
        return self._works + self._latency


def _served(load: Load, network: Network, seconds: np.ndarray) -> tuple[float, float]:
    """Simulate workers at their servers, from seconds without the exchange [steps, workers].

    Return the seconds of a step, until the slowest worker has made its last one, and the mean
    seconds of a worker's exchange in a step.
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
    return ended / steps, exchanged / seconds.size


def _of_servers(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """Bisect the servers' share of a worker's exchange; servers take one worker after the other.

    The simulation then spends as much on the exchange as measured, with one worker and with
    several.
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
        _, exchange = _served(shared(middle), _FREE, seconds)
        low, high = (middle, high) if exchange < several else (low, middle)
    return shared(high)


def _seconds_at_servers(readings: Sequence[Reading]) -> float | None:
    """Return the seconds of exchange of a step, where nobody waits for the slowest."""
    found = [[second for rank in one.exchange for second in rank] for one in readings]
    if not found or not all(found):
        return None
    return statistics.median(statistics.fmean(one) for one in found)


SCHEMES: Mapping[str, Scheme] = {
    "all-reduce": _ring(ALL_REDUCED),
    "sharded": _ring(SHARDED),
    "averaging": Scheme(
        _averaging,
        lambda load, workers: 2.0 * AVERAGED_ARRAYS * workers / load.round_steps,
        _of_averaging,
    ),
    "servers": Scheme(
        lambda load, network, workers, generator: _served(
            load, network, _drawn(load, workers, generator)
        )[0],
        lambda load, workers: 2.0,
        _of_servers,
    ),
}


def scheme_of(strategy: Strategy) -> str:
    """Return the scheme of exchange of a strategy's workers."""
    training = strategy.training
    if training["mode"] != "sync":
        return "servers"
    if training["engine"] == "elephas":
        return "averaging"
    return "sharded" if training["sharding"] == "parameters" else "all-reduce"


def load_of(
    evidence: Evidence, strategy: Strategy, step_examples: int, round_steps: int
) -> Load | None:
    """Return one worker's load in a step of a strategy; None where the readings do not suffice.

    `step_examples` counts all workers; an averaging strategy averages after `round_steps`.
    """
    workers, name = evidence.several[0].workers, scheme_of(strategy)
    sent = [one.bytes_per_step for one in evidence.several if one.bytes_per_step is not None]
    if len(sent) < len(evidence.several):
        return None
    blank = Load(
        computing=(),
        payload=1.0,
        seconds_per_byte=0.0,
        # Of servers a step is one worker's.
        examples=step_examples if name == "servers" else step_examples // workers,
        servers=int(strategy.training["parameter_servers"]),
        round_steps=round_steps,
    )
    scheme = SCHEMES[name]
    payload = statistics.median(sent) / scheme.times_sent(blank, workers)
    return scheme.calibrated(replace(blank, payload=payload), evidence, workers)


@dataclass(frozen=True)
class Projection:
    """The predicted rates of a strategy: examples per second by the number of workers.

    The network is a key of :data:`NETWORKS`.
    """

    strategy: str
    network: str
    rates: Mapping[int, float]

    @property
    def pays_until(self) -> int:
        """Return the number of workers from which on more of them stop paying."""
        return pays_until(self.rates)


def projections(
    readings: Sequence[Reading],
    strategies: Mapping[str, Strategy],
    step_examples: int,
    round_steps: int,
) -> list[Projection]:
    """Return, on each network, a projection of each strategy measured with several workers.

    `step_examples` counts all workers.
    """
    found = []
    for name, strategy in strategies.items():
        evidence = _evidence(readings, strategies, name)
        load = load_of(evidence, strategy, step_examples, round_steps) if evidence else None
        if load is None:
            continue
        for network, link in NETWORKS.items():
            rates = {
                count: predicted_rate(scheme_of(strategy), load, link, count) for count in COUNTS
            }
            found.append(Projection(name, network, rates))
    return found


def _evidence(
    readings: Sequence[Reading], strategies: Mapping[str, Strategy], name: str
) -> Evidence | None:
    """Return the evidence with the most workers; None where no reading has several."""
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
