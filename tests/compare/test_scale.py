"""The simulation of more workers: its formulas, and the loads that it is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategy_readings import reading

from pipelines.compare.prediction import (
    SCHEMES,
    Evidence,
    Load,
    Network,
    exchange_seconds,
    load_of,
    pays_until,
    predicted_rate,
    projections,
    scheme_of,
)
from pipelines.compare.strategy import all_strategies

FAST = Network(bandwidth=1e15, latency=0.0)


def load(**told):
    values = {"computing": [0.5], "payload": 1e6, "seconds_per_byte": 0.0, "examples": 8}
    return Load(**(values | told))


@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    payload=st.floats(1, 1e9),
    bandwidth=st.floats(1e6, 1e10),
    workers=st.integers(1, 40),
    more=st.floats(1, 100),
)
def test_a_better_network_is_never_slower(scheme, payload, bandwidth, workers, more):
    one = load(payload=payload)
    slow = predicted_rate(scheme, one, Network(bandwidth=bandwidth, latency=1e-3), workers)
    fast = predicted_rate(scheme, one, Network(bandwidth=more * bandwidth, latency=1e-4), workers)
    ideal = workers * one.examples / 0.5
    assert slow <= fast * (1 + 1e-9)
    assert fast <= ideal * (1 + 1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_without_a_network_and_without_stragglers_nothing_but_computing_takes_time(scheme):
    assert predicted_rate(scheme, load(), FAST, 16) == pytest.approx(16 * 8 / 0.5, rel=1e-6)


def test_a_ring_takes_what_its_source_says():
    network = Network(bandwidth=1e6, latency=0.01)
    one = load(payload=4e6, seconds_per_byte=1e-7)
    # 2 (W - 1) rounds of a part of 1 MB: 10 ms, 1 s of travel, 0.1 s of arithmetic.
    step = 0.5 + 2 * 3 * (0.01 + 1.0 + 0.1)
    assert predicted_rate("all-reduce", one, network, 4) == pytest.approx(4 * 8 / step)


def test_a_server_serves_no_more_than_its_link_carries():
    network = Network(bandwidth=1e6, latency=0.0)
    one = load(payload=1e6, computing=[0.001])
    # A gradient arrives each second, whoever sends it.
    assert predicted_rate("servers", one, network, 64) == pytest.approx(8, rel=0.05)
    two = load(payload=1e6, computing=[0.001], servers=2)
    assert predicted_rate("servers", two, network, 64) == pytest.approx(16, rel=0.05)


def test_stragglers_hold_up_those_who_wait_for_all():
    spread = load(computing=[0.4, 0.6])
    waiting = predicted_rate("all-reduce", spread, FAST, 64)
    alone = predicted_rate("servers", spread, FAST, 64)
    assert waiting == pytest.approx(64 * 8 / 0.6)
    # Each makes its own steps, and the last one ends a little after the others.
    assert alone > 1.1 * waiting


def test_from_where_more_workers_stop_paying():
    assert pays_until({1: 10, 2: 20, 4: 40}) == 4
    assert pays_until({1: 10, 2: 20, 4: 22}) == 2
    # The step from one to two is dear, and pays all the same when more follow.
    assert pays_until({1: 10, 2: 13, 4: 26, 8: 52}) == 8
    assert pays_until({1: 10}) == 1


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("torch", "all-reduce"),
        ("deepspeed-gradients", "all-reduce"),
        ("torch-parameters", "sharded"),
        ("elephas-sync", "averaging"),
        ("elephas-hogwild", "servers"),
        ("distributed-servers", "servers"),
    ],
)
def test_how_strategies_exchange(name, scheme):
    assert scheme_of(all_strategies()[name]) == scheme


def steps_of(computing, exchange):
    """What a reading tells of workers, of each one's steps."""
    return {
        "step_seconds": tuple(
            tuple(map(sum, zip(*steps, strict=True)))
            for steps in zip(computing, exchange, strict=True)
        ),
        "exchange": tuple(exchange),
    }


def test_a_load_gives_again_what_was_measured():
    payload, spent = 2e6, 0.3
    # The faster one waits 0.2 s for the other.
    steps = steps_of([(0.5,) * 20, (0.7,) * 20], [(spent + 0.2,) * 20, (spent,) * 20])
    seen = reading(workers=2, bytes_per_step=2 * payload, **steps)
    assert exchange_seconds([seen]) == pytest.approx(spent)
    found = load_of(Evidence(several=[seen]), all_strategies()["torch"], 16, 8)
    assert found.payload == payload
    assert found.examples == 8
    # A pair of which either is the slower one.
    slowest = sum(max(a, b) for a in (0.5, 0.7) for b in (0.5, 0.7)) / 4
    rate = predicted_rate("all-reduce", found, FAST, 2)
    assert rate == pytest.approx(16 / (slowest + spent), rel=0.05)


def test_where_averages_are_waited_for_the_slowest_of_each_round_counts():
    # Of two steps each worker has a slow one: nobody waits at the end of the round.
    even = steps_of([(0.4, 0.6) * 8, (0.6, 0.4) * 8], [(0.1,) * 16] * 2)
    assert exchange_seconds([reading(workers=2, **even)], 2) == pytest.approx(0.1)
    assert exchange_seconds([reading(workers=2, **even)], 1) == pytest.approx(0.0)
    assert exchange_seconds([reading(workers=2, **even)], 32) is None


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize(
    ("name", "crossed"),
    [
        ("torch", lambda workers: 2 * (workers - 1)),
        ("torch-parameters", lambda workers: 3 * (workers - 1)),
        ("elephas-sync", lambda workers: 2 * 3 * workers / 8),
        ("single-server", lambda _: 2),
        ("distributed-servers", lambda _: 2),
    ],
)
def test_every_scheme_gives_again_the_rate_that_it_was_calibrated_with(name, crossed, workers):
    """Workers of even speed, on a network that takes no time."""
    computing, spent = 0.5, 0.3

    def measured(name, workers, spent):
        steps = steps_of([(computing,) * 40] * workers, [(spent,) * 40] * workers)
        return reading(name, workers=workers, bytes_per_step=crossed(workers) * 1e6, **steps)

    evidence = Evidence(
        several=[measured(name, workers, spent)],
        alone=[measured(name, 1, 0.2)],
        # Where all weights are whole a step takes less by the exchange.
        unsharded=[measured("torch", workers, 0.1)],
    )
    found = load_of(evidence, all_strategies()[name], 8 * workers, 8)
    assert found.payload == pytest.approx(1e6)
    scheme = scheme_of(all_strategies()[name])
    examples = workers * 8 * (workers if scheme == "servers" else 1)
    rate = predicted_rate(scheme, found, FAST, workers)
    assert rate == pytest.approx(examples / (computing + spent), rel=0.02)


def test_what_grows_with_the_workers_is_the_servers():
    def measured(workers, spent):
        steps = steps_of([(0.5,) * 40] * workers, [(spent,) * 40] * workers)
        return reading("single-server", workers=workers, bytes_per_step=2e6, **steps)

    strategy = all_strategies()["single-server"]
    parallel = load_of(
        Evidence(several=[measured(4, 0.2)], alone=[measured(1, 0.2)]), strategy, 8, 8
    )
    assert parallel.seconds_per_byte * parallel.payload < 0.01
    assert predicted_rate("servers", parallel, FAST, 64) == pytest.approx(64 * 8 / 0.7, rel=0.05)
    # Four at a server that has 0.3 s of work for each step: it is never idle.
    served = load_of(Evidence(several=[measured(4, 0.7)], alone=[measured(1, 0.3)]), strategy, 8, 8)
    assert served.seconds_per_byte * served.payload == pytest.approx(0.3, rel=0.05)
    assert predicted_rate("servers", served, FAST, 64) == pytest.approx(8 / 0.3, rel=0.05)


@pytest.mark.parametrize("name", ["torch", "torch-parameters", "elephas-sync", "single-server"])
def test_nothing_is_predicted_from_what_was_not_measured(name):
    strategy = all_strategies()[name]
    bare = reading(name, workers=2, bytes_per_step=1e6)
    evidence = Evidence(several=[bare], alone=[bare], unsharded=[bare])
    assert load_of(evidence, strategy, 16, 8) is None
    steps = steps_of([(0.5,) * 40] * 2, [(0.1,) * 40] * 2)
    whole = Evidence(several=[reading(workers=2, bytes_per_step=1e6, **steps)], unsharded=[bare])
    assert name != "torch-parameters" or load_of(whole, strategy, 16, 8) is None
    silent = reading(name, workers=2, **steps)
    assert load_of(Evidence(several=[silent], alone=[silent]), strategy, 16, 8) is None


def test_projections_are_of_the_most_workers():
    def measured(name, workers, spent):
        steps = steps_of([(0.5,) * 40] * workers, [(spent,) * 40] * workers)
        return reading(name, workers=workers, bytes_per_step=1e6, **steps)

    known = {
        name: all_strategies()[name] for name in ("torch", "single-server", "torch-parameters")
    }
    found = projections(
        [
            measured("torch", 2, 0.1),
            measured("torch", 4, 0.1),
            measured("single-server", 2, 0.1),
            reading(
                "torch-parameters", workers=4, step_seconds=((0.7,) * 9,) * 4, bytes_per_step=1
            ),
        ],
        known,
        16,
        8,
    )
    # Of servers there is no reading with one worker.
    assert {one.strategy for one in found} == {"torch", "torch-parameters"}
    # Sharded, a step takes 0.1 s longer than the slowest computes and all weights travel.
    rates = {one.strategy: one.rates[4] for one in found if one.network.startswith("10 Gbit")}
    assert rates["torch"] == pytest.approx(16 / 0.6, rel=0.02)
    assert rates["torch-parameters"] == pytest.approx(16 / 0.7, rel=0.02)
