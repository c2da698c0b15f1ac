"""The rates of more workers, simulated from measurements with few.

The simulation draws a worker's computing time from the measured seconds, and so keeps the share of
stragglers. The measured bytes travel over links of a given bandwidth and latency, one for each
worker and server, full duplex. The schemes of exchange are those of this package:

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
"""Rounds of a payload in a ring of workers, per step."""
AVERAGED_ARRAYS = 3
"""Weights, first and second moments."""
STOPS_PAYING = 0.5
"""The smallest useful gain of a further worker, as a share of the former rate per worker."""
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
TABLE_COUNTS = (8, 64, 512)
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
        computing: Measured seconds of several steps without any exchange, for random draws.
        payload: Bytes of the gradients, and of the weights.
        seconds_per_byte: Processor time for bytes sent, received and added. With parameter or
            averaging servers, it is the servers' time; they serve one worker after the other.
        examples: In a step of one worker.
        own_seconds: A worker's own seconds for each exchange with a server.
        servers: Number of parameter servers, if any.
        round_steps: Steps between two averages, for averaging workers.
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
    """The readings for the computation of a strategy's load.

    Attributes:
        several: With several workers, the same number in all.
        alone: With one worker, without competition at the servers.
        unsharded: Of the same engine and number of workers with undivided weights: with sharded
            weights an engine cannot separate the exchange from the arithmetic.
    """

    several: Sequence[Reading]
    alone: Sequence[Reading] = ()
    unsharded: Sequence[Reading] = ()


class Scheme(NamedTuple):
    """The workers' exchange of their results.

    Attributes:
        seconds: Mean seconds of a step by the number of workers, over at least :data:`STEPS` steps.
        times_sent: The payload's passages of the network in a step, over all workers.
        calibrated: Completes a load of known payload from readings with that number of workers;
            None if the readings do not suffice.
    """

    seconds: Callable[[Load, Network, int, np.random.Generator], float]
    times_sent: Callable[[Load, int], float]
    calibrated: Callable[[Load, Evidence, int], Load | None]


def predicted_rate(
    scheme: str, load: Load, network: Network, workers: int, seed: int = 17
) -> float:
    """Return the examples per second of all workers together, by a scheme of :data:`SCHEMES`.

    Each worker has the given load, with the same examples a step for any number of workers.
    """
    seconds = SCHEMES[scheme].seconds(load, network, workers, np.random.default_rng(seed))
    return workers * load.examples / seconds


def pays_until(rates: Mapping[int, float]) -> int:
    """Return the largest useful number of workers.

    Rates are examples per second by the number of workers. Beyond the result, each further worker
    adds less than :data:`STOPS_PAYING` of the former rate per worker. The result is the largest
    number if workers pay up to the end.
    """
    counts = sorted(rates)
    found = counts[-1]
    # From the end: a small gain does not stop the count if later workers pay again.
    for lower, higher in reversed([*pairwise(counts)]):
        gain = (rates[higher] - rates[lower]) / (higher - lower)
        if gain >= STOPS_PAYING * rates[lower] / lower:
            break
        found = lower
    return found


def _drawn(
    load: Load, workers: int, generator: np.random.Generator, steps: int = STEPS
) -> np.ndarray:
    """Draw the seconds of each step and worker without the exchange."""
    return generator.choice(np.asarray(load.computing), (steps, workers))


def _ring(rounds: int) -> Scheme:
    """Return the scheme of a ring: parts make some rounds, over all links at once."""

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
    """Count the extra time of a step over undivided weights as the exchange."""
    known = [reading.computing for reading in evidence.unsharded]
    known += [reading.step_seconds for reading in evidence.several]
    if not evidence.unsharded or not all(known):
        return None, []
    unsharded = [np.asarray(reading.computing).max(axis=0).mean() for reading in evidence.unsharded]
    sharded = [np.asarray(reading.step_seconds).mean() for reading in evidence.several]
    exchange = max(float(np.median(sharded) - np.median(unsharded)), 0.0)
    return exchange, _computing(evidence.unsharded)


def _computing(readings: Sequence[Reading]) -> list[float]:
    return [seconds for reading in readings for rank in reading.computing for seconds in rank]


def exchange_seconds(readings: Sequence[Reading], block: int = 1) -> float | None:
    """Return the seconds of exchange of a worker's step, without the wait for slower workers.

    The median of a strategy's readings counts; None without readings, or if one lacks the seconds.
    After each `block` of steps, all wait for the slowest.
    """
    found = [_exchange_seconds(reading, block) for reading in readings]
    known = [seconds for seconds in found if seconds is not None]
    return statistics.median(known) if known and len(known) == len(found) else None


def _exchange_seconds(reading: Reading, block: int) -> float | None:
    steps = min((len(rank) for rank in reading.computing), default=0) // block * block
    if not steps:
        return None
    computing = np.asarray([rank[:steps] for rank in reading.computing])
    by_block = computing.reshape(len(computing), -1, block).sum(axis=2)
    # The wait for slower workers is no exchange: the simulation draws it anew.
    waited = float((by_block.max(axis=0) - by_block.mean(axis=0)).mean()) / block
    exchange = float(np.mean([rank[:steps] for rank in reading.exchange]))
    return max(exchange - waited, 0.0)


def _averaging(load: Load, network: Network, workers: int, generator: np.random.Generator) -> float:
    # Rounded up, for at least STEPS steps.
    rounds = -(-STEPS // load.round_steps)
    seconds = _drawn(load, workers, generator, rounds * load.round_steps)
    by_round = seconds.reshape(rounds, load.round_steps, workers)
    slowest = float(by_round.sum(axis=1).max(axis=1).mean())
    sent = AVERAGED_ARRAYS * load.payload * workers
    # The server's link and processor handle all of it twice, on the way in and on the way out.
    exchange = 2 * (network.latency + sent / network.bandwidth + sent * load.seconds_per_byte)
    return (slowest + load.own_seconds + exchange) / load.round_steps


def _of_averaging(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """Attribute the time that grows with the workers to the server; it serves them in turn."""
    single = exchange_seconds(evidence.alone, load.round_steps)
    several = exchange_seconds(evidence.several, load.round_steps)
    if single is None or several is None:
        return None
    each = max(several - single, 0.0) / (workers - 1)
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
        """Return the arrival of this part of the parameters, for a worker's request now."""
        self._sends = max(now + self._latency, self._sends) + self._travel
        return self._sends + self._latency

    def push(self, now: float) -> float:
        """Return the arrival of the server's answer, for a worker's gradient sent now."""
        self._receives = max(now + self._latency, self._receives) + self._travel
        self._works = max(self._receives, self._works) + self._work
        return self._works + self._latency


def _served(load: Load, network: Network, seconds: np.ndarray) -> tuple[float, float]:
    """Simulate workers at their servers, from seconds without the exchange [steps, workers].

    Return the mean seconds of a step, up to the slowest worker's last step, and the mean seconds of
    a worker's exchange in a step.
    """
    steps, workers = seconds.shape
    servers = [_Server(load, network) for _ in range(load.servers)]
    # A worker's own link carries the parts of all servers.
    worker_seconds = load.payload / network.bandwidth
    # A moment, a worker, its step, and whether it has computed that step.
    events = [(0.0, worker, 0, False) for worker in range(workers)]
    ended = exchanged = 0.0
    while events:
        now, worker, step, computed = heapq.heappop(events)
        if computed:
            applied = max(now + worker_seconds, *(server.push(now) for server in servers))
            applied += load.own_seconds
            exchanged += applied - now
            if step + 1 < steps:
                heapq.heappush(events, (applied, worker, step + 1, False))
            ended = max(ended, applied)
        else:
            pulled = max(now + worker_seconds, *(server.pull(now) for server in servers))
            exchanged += pulled - now
            heapq.heappush(events, (pulled + seconds[step, worker], worker, step, True))
    return ended / steps, exchanged / seconds.size


def _of_servers(load: Load, evidence: Evidence, workers: int) -> Load | None:
    """Bisect the servers' share of a worker's exchange; servers take one worker after the other.

    The simulated exchange then equals the measured one, with one worker and with several.
    """
    single = _seconds_at_servers(evidence.alone)
    several = _seconds_at_servers(evidence.several)
    if single is None or several is None:
        return None
    load = replace(load, computing=_computing(evidence.several))
    seconds = np.random.default_rng(0).choice(np.asarray(load.computing), (STEPS, workers))

    def shared(serial: float) -> Load:
        own_seconds = max(min(single, several) - serial, 0.0)
        each = serial * load.servers / load.payload
        return replace(load, seconds_per_byte=each, own_seconds=own_seconds)

    low, high = 0.0, several
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        _, exchange = _served(shared(middle), _FREE, seconds)
        low, high = (middle, high) if exchange < several else (low, middle)
    return shared(high)


def _seconds_at_servers(readings: Sequence[Reading]) -> float | None:
    """Return the seconds of exchange of a step, without a wait for the slowest worker."""
    found = [[seconds for rank in reading.exchange for seconds in rank] for reading in readings]
    if not found or not all(found):
        return None
    return statistics.median(statistics.fmean(exchange) for exchange in found)


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
    """Return one worker's load in a step of a strategy; None if the readings do not suffice.

    `step_examples` counts all workers; an averaging strategy averages after `round_steps`.
    """
    workers, name = evidence.several[0].workers, scheme_of(strategy)
    sent = [
        reading.bytes_per_step for reading in evidence.several if reading.bytes_per_step is not None
    ]
    if len(sent) < len(evidence.several):
        return None
    blank = Load(
        computing=(),
        payload=1.0,
        seconds_per_byte=0.0,
        # With servers, each worker makes its own steps.
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
        """Return the largest useful number of workers."""
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
    """Return the evidence with the most workers; None without a reading of several."""
    most = max((reading.workers for reading in readings if reading.strategy == name), default=1)
    if most == 1:
        return None

    def of(strategy: str | None, workers: int) -> list[Reading]:
        key = (strategy, workers)
        return [reading for reading in readings if (reading.strategy, reading.workers) == key]

    wanted = {**strategies[name].training, "sharding": "none"}
    unsharded = next(
        (
            candidate
            for candidate, strategy in strategies.items()
            if strategy.training == wanted and not strategy.is_peer
        ),
        None,
    )
    return Evidence(several=of(name, most), alone=of(name, 1), unsharded=of(unsharded, most))
