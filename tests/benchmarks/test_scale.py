"""The simulation of more workers: its formulas, and the loads that it is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategy_readings import reading

from pipelines.benchmarks.strategies.projection import exchange_seconds, load_of, scheme_of
from pipelines.benchmarks.strategies.scale import (
    SCHEMES,
    Load,
    Network,
    pays_until,
    predicted_rate,
)
from pipelines.benchmarks.strategies.strategy import all_strategies

FAST = Network(bandwidth=1e15, latency=0.0)


def load(**told):
    values = {"arithmetic": [0.5], "payload": 1e6, "seconds_per_byte": 0.0, "examples": 8}
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
def test_without_a_network_and_without_stragglers_all_of_it_is_arithmetic(scheme):
    assert predicted_rate(scheme, load(), FAST, 16) == pytest.approx(16 * 8 / 0.5, rel=1e-6)


def test_a_ring_takes_what_its_source_says():
    network = Network(bandwidth=1e6, latency=0.01)
    one = load(payload=4e6, seconds_per_byte=1e-7)
    # 2 (W - 1) rounds of a part of 1 MB: 10 ms, 1 s of travel, 0.1 s of arithmetic.
    step = 0.5 + 2 * 3 * (0.01 + 1.0 + 0.1)
    assert predicted_rate("all-reduce", one, network, 4) == pytest.approx(4 * 8 / step)


def test_a_server_serves_no_more_than_its_link_carries():
    network = Network(bandwidth=1e6, latency=0.0)
    one = load(payload=1e6, arithmetic=[0.001])
    # A gradient arrives each second, whoever sends it.
    assert predicted_rate("servers", one, network, 64) == pytest.approx(8, rel=0.05)
    two = load(payload=1e6, arithmetic=[0.001], servers=2)
    assert predicted_rate("servers", two, network, 64) == pytest.approx(16, rel=0.05)


def test_stragglers_hold_up_those_who_wait_for_all():
    spread = load(arithmetic=[0.4, 0.6])
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


def test_a_load_gives_again_what_was_measured():
    payload, spent = 2e6, 0.3
    seen = reading(
        workers=2,
        arithmetic=(0.5, 0.7) * 20,
        # The faster one waits 0.2 s for the other.
        exchange=(spent + 0.2, spent) * 20,
        bytes_per_step=2 * payload,
    )
    assert exchange_seconds(seen, "all-reduce") == pytest.approx(spent)
    found = load_of([seen], all_strategies()["torch"], 16, 8)
    assert found.payload == payload
    assert found.examples == 8
    # A pair of which either is the slower one.
    slowest = sum(max(a, b) for a in (0.5, 0.7) for b in (0.5, 0.7)) / 4
    rate = predicted_rate("all-reduce", found, FAST, 2)
    assert rate == pytest.approx(16 / (slowest + spent), rel=0.05)


@pytest.mark.parametrize(
    ("name", "crossed"),
    [
        ("torch", 2),
        ("torch-parameters", 3),
        ("elephas-sync", 2 * 3 * 2 / 8),
        ("single-server", 2),
        ("distributed-servers", 2),
    ],
)
def test_every_scheme_gives_again_the_rate_that_it_was_calibrated_with(name, crossed):
    """Two workers of even speed, on a network that takes no time."""
    spent, strategy = 0.3, all_strategies()[name]
    seen = reading(
        name,
        workers=2,
        arithmetic=(0.5,) * 40,
        exchange=(spent,) * 40,
        bytes_per_step=crossed * 1e6,
    )
    found = load_of([seen], strategy, 16, 8)
    assert found.payload == pytest.approx(1e6)
    scheme = scheme_of(strategy)
    # Of servers, one worker is at them at a time; of averages, eight steps are a round.
    workers, steps = (1, 16) if scheme == "servers" else (2, 16)
    rate = predicted_rate(scheme, found, FAST, workers)
    assert rate == pytest.approx(steps / (0.5 + spent), rel=0.05)
