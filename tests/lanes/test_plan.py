"""The invariants of the batch plan, for any size."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.lanes.plan import (
    BatchPlan,
    bucket_length,
    choose_lanes,
    noise_seed,
    plan_segments,
    share,
)

counts = st.dictionaries(st.integers(1, 8).map(lambda n: 8 * n), st.integers(0, 500), min_size=1)


@given(counts, st.integers(1, 6), st.integers(2, 8))
def test_segments_take_whole_rows_and_leave_less_than_one(counts, lanes, granule):
    segments = plan_segments(counts, lanes, granule)
    position = row = 0
    for segment in segments:
        assert segment.first_example == position
        assert segment.first_row == row
        assert segment.examples == segment.rows * lanes * granule > 0
        position += segment.examples
        row += segment.rows
        # Nobody is in a bucket shorter than their own text.
        assert position <= sum(n for length, n in counts.items() if length <= segment.length)
    assert 0 <= sum(counts.values()) - position < lanes * granule


@given(st.integers(1, 600), st.integers(1, 64))
def test_bucket_length_is_the_next_edge(length, bucket):
    edge = bucket_length(length, bucket)
    assert edge % bucket == 0
    assert edge - bucket < length <= edge


plans = st.builds(
    BatchPlan,
    lanes=st.just(48),
    rows=st.integers(1, 9),
    granules_per_step=st.just(24),
    seed=st.integers(0, 2**31),
)


@given(plans)
def test_an_epoch_holds_every_granule_once(plan):
    steps = list(plan.steps(0, plan.steps_per_epoch))
    seen = Counter(address for step in steps for address in step.granules)
    assert len(seen) == plan.lanes * plan.rows
    assert set(seen.values()) == {1}


@given(plans)
def test_a_step_is_of_one_row(plan):
    for step in plan.steps(0, 2 * plan.steps_per_epoch):
        assert len({address.row for address in step.granules}) == 1


@given(plans)
def test_steps_are_the_same_for_every_number_of_workers(plan):
    for step in plan.steps(0, plan.steps_per_epoch + 1):
        for workers in (1, 2, 3, 4, 6, 8):
            shares = [share(step, rank, workers) for rank in range(workers)]
            assert {len(part) for part in shares} == {len(step.granules) // workers}
            assert tuple(address for part in shares for address in part) == step.granules


@given(plans, st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_workers_own_their_lanes(plan, workers):
    owners = {}
    for step in plan.steps(0, plan.steps_per_epoch):
        for rank in range(workers):
            for address in share(step, rank, workers):
                assert owners.setdefault(address.lane, rank) == rank


@given(plans, st.data())
def test_resuming_gives_the_rest_of_the_same_sequence(plan, data):
    last = 3 * plan.steps_per_epoch
    at = data.draw(st.integers(0, last))
    assert list(plan.steps(0, last))[at:] == list(plan.steps(at, last))


def test_steps_are_permuted_afresh_each_epoch():
    plan = BatchPlan(lanes=4, rows=25, granules_per_step=2, seed=3)
    assert list(plan.step_order(0)) != list(plan.step_order(1))
    assert sorted(plan.step_order(0)) == sorted(plan.step_order(1)) == list(range(50))


@pytest.mark.parametrize(
    ("examples", "lanes"), [(48 * 64 * 32, 48), (48 * 64 * 32 - 1, 24), (25_000, 12), (10, 2)]
)
def test_a_small_corpus_gets_fewer_lanes(examples, lanes):
    assert choose_lanes(examples, 64, most=48, granules_per_step=2) == lanes


@given(st.integers(0, 10**7), st.integers(2, 128), st.integers(1, 96), st.integers(1, 96))
def test_lanes_divide_the_most_and_fit_the_step_where_they_can(examples, granule, most, step):
    lanes = choose_lanes(examples, granule, most=most, granules_per_step=step)
    assert most % lanes == 0
    assert lanes % step == 0 or most % step != 0


def test_noise_differs_by_seed_epoch_granule_and_site():
    seeds = {noise_seed(s, e, g, x) for s in (0, 1) for e in (0, 1) for g in (0, 1) for x in (0, 1)}
    assert len(seeds) == 16
