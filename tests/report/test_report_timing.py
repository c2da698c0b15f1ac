"""Where the time went, from what the workers logged."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.report.run_charts import (
    MAX_WORKERS,
    PARTS,
    paces_by_group,
    shares_by_group,
    time_spent,
    together,
    worker_times,
)


def worker(rank: int, arithmetic: float, communication: float, examples: int = 10) -> dict:
    parts = {"data": 0.5, "arithmetic": arithmetic, "communication": communication, "other": 0.5}
    return {
        "rank": rank,
        "examples": examples,
        "tokens": 20,
        "seconds": sum(parts.values()),
    } | parts


LINES = [
    {"step": 10, "workers": [worker(0, 3.0, 1.0), worker(1, 2.0, 2.0)]},
    {"step": 20, "workers": [worker(1, 2.0, 2.0)]},
    {"step": 30},
]


def test_totals_of_each_worker_and_of_all() -> None:
    first, second = worker_times(LINES)
    assert (first.rank, first.examples, first.seconds) == (0, 10, 5.0)
    assert (second.rank, second.examples, second.seconds) == (1, 20, 10.0)
    assert second.parts == {"arithmetic": 4.0, "communication": 4.0, "data": 1.0, "other": 1.0}
    assert (second.examples_per_second, second.arithmetic_pace) == (2.0, 5.0)
    everybody = together(LINES)
    assert (everybody.rank, everybody.examples, everybody.seconds) == (None, 30, 15.0)
    assert everybody.shares["arithmetic"] == pytest.approx(7 / 15)


def test_over_the_steps() -> None:
    groups = [[line] for line in LINES]
    assert shares_by_group(groups)["communication"] == pytest.approx([0.3, 0.4, 0.0])
    paces = paces_by_group(groups, of_arithmetic=True)
    assert paces[1][:2] == [5.0, 5.0]
    assert paces[0][0] == pytest.approx(10 / 3)
    assert all(map(math.isnan, [*paces[0][1:], paces[1][2]]))
    assert paces_by_group(groups, of_arithmetic=False)[0][0] == 2.0
    assert shares_by_group([[{"step": 1}]]) == {}


SECONDS = st.floats(0, 1e5)


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5))
def test_shares_are_of_the_whole(seconds: list[tuple[float, float]]) -> None:
    line = {"workers": [worker(rank, *both) for rank, both in enumerate(seconds)]}
    whole = together([line]).shares
    assert whole.keys() <= PARTS.keys()
    assert math.fsum(whole.values()) == pytest.approx(1.0)
    assert all(0 <= share <= 1 for share in whole.values())


def test_of_many_workers_those_that_compute_longest_are_shown() -> None:
    workers = [worker(rank, 1.0 + rank, 1.0) for rank in range(MAX_WORKERS + 3)]
    spent = time_spent([{"step": 1, "workers": workers}])
    assert spent is not None
    assert spent.left_out == 3
    assert [bar.name for bar in spent.workers] == [
        f"Worker {rank}" for rank in range(3, MAX_WORKERS + 3)
    ]
    assert spent.apart


def test_without_measures_nothing_is_claimed() -> None:
    assert time_spent([]) is None
    assert time_spent([{"step": 1, "workers": []}, {"step": 2}]) is None
