"""The invariants of the batch plan, for any size."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.lanes.plan import (
    EVEN_TOKENS,
    BatchPlan,
    bucket_length,
    bucket_table,
    choose_lanes,
    count_same_group_in_step,
    deal,
    lane_order,
    noise_seed,
    plan_segments,
    share,
)


@given(st.integers(1, 9000), st.integers(1, 64), st.floats(1, 2))
def test_buckets_hold_every_length_and_grow_with_it(longest, bucket, growth):
    table = bucket_table(longest, bucket, growth)
    edges = sorted(set(table))
    assert edges[-1] == len(table) * bucket >= longest
    assert all(edge % bucket == 0 for edge in edges)
    for place, edge in enumerate(table):
        # No text is longer than its bucket, and the bucket before ends below it.
        assert edge >= (place + 1) * bucket
        assert edge in edges
    for before, edge in pairwise([0, *edges]):
        even = before < EVEN_TOKENS or growth == 1
        assert edge - before == bucket if even else edge < before * growth + bucket + 1
        assert table[before // bucket : edge // bucket] == (edge,) * ((edge - before) // bucket)


def test_long_texts_have_some_hundred_buckets():
    assert len(set(bucket_table(512, 8, 1.05))) == 64
    assert len(set(bucket_table(8192, 8, 1.0))) == 1024
    assert len(set(bucket_table(8192, 8, 1.05))) < 125


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


@st.composite
def dealt(draw):
    """Segments of a few rows, groups of any size that fits, and where their members are dealt."""
    lanes = draw(st.sampled_from([1, 4, 6, 12, 45, 48]))
    granules_per_step = draw(st.sampled_from(divisors(lanes)))
    granule = draw(st.integers(1, 5))
    rows = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    filled = {8 * number: rows * lanes * granule for number, rows in enumerate(rows, 1)}
    segments = plan_segments(filled, lanes, granule)
    groups: list[int] = []
    for segment in segments:
        most = draw(st.integers(1, segment.rows * lanes))
        sizes = st.integers(1, most)
        end = segment.first_example + segment.examples
        while len(groups) < end:
            number = groups[-1] + 1 if groups else 0
            groups += [number] * min(draw(sizes) if most > 1 else 1, end - len(groups))
    places = deal(np.arange(len(groups)), segments, lanes, granules_per_step)
    return segments, lanes, granules_per_step, granule, np.array(groups), places


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def members_by_step(plan: BatchPlan, places, groups) -> Counter[tuple[int, int]]:
    """How many members of a group are in a step, by step and group."""
    step_of = {
        (address.row, address.lane): step.index
        for step in plan.steps(0, plan.steps_per_epoch)
        for address in step.granules
    }
    rows, lanes = places.row.tolist(), places.lane.tolist()
    steps = (step_of[place] for place in zip(rows, lanes, strict=True))
    return Counter(zip(steps, groups.tolist(), strict=True))


@given(dealt())
def test_every_slot_of_every_granule_is_dealt_one_example(dealing):
    segments, lanes, _, granule, groups, places = dealing
    seen = set(zip(places.row, places.lane, places.slot, strict=True))
    rows = sum(segment.rows for segment in segments)
    assert len(seen) == len(groups) == rows * lanes * granule
    assert (places.row.max() + 1, places.lane.max() + 1, places.slot.max() + 1) == (
        rows,
        lanes,
        granule,
    )
    for segment in segments:
        own = places.row[segment.first_example :][: segment.examples]
        assert (own.min(), own.max()) == (segment.first_row, segment.first_row + segment.rows - 1)


@given(dealt())
def test_a_group_meets_in_no_granule_and_in_as_few_steps_as_can_be(dealing):
    segments, lanes, granules_per_step, _, groups, places = dealing
    rows = sum(segment.rows for segment in segments)
    in_granule = Counter(zip(places.row, places.lane, groups, strict=True))
    assert set(in_granule.values()) == {1}
    sizes = Counter(groups.tolist())
    segment_of = {
        group: segment
        for segment in segments
        for group in groups[segment.first_example :][: segment.examples].tolist()
    }
    for size in divisors(lanes):
        plan = BatchPlan(lanes=lanes, rows=rows, granules_per_step=size, seed=1)
        by_step = members_by_step(plan, places, groups)
        for (_, group), members in by_step.items():
            segment_rows = segment_of[group].rows
            # Whatever the size of the step: what is shared evenly by rows.
            assert members <= -(-sizes[group] // segment_rows)
            if size == granules_per_step:
                assert members <= -(-sizes[group] // (segment_rows * plan.steps_per_row))
        if size == granules_per_step:
            shared = sum(members for members in by_step.values() if members > 1)
            assert shared == sum(
                count_same_group_in_step(members, segment_of[group].rows * plan.steps_per_row)
                for group, members in sizes.items()
            )


@pytest.mark.parametrize("granules_per_step", [8, 16, 48])
def test_groups_of_five_meet_in_no_step(granules_per_step):
    segments = plan_segments({16: 48 * 64 * 7, 24: 48 * 64 * 5}, 48, 64)
    groups = np.arange(48 * 64 * 12) // 5
    places = deal(np.arange(len(groups)), segments, 48, granules_per_step)
    plan = BatchPlan(lanes=48, rows=12, granules_per_step=granules_per_step, seed=1)
    assert set(members_by_step(plan, places, groups).values()) == {1}


@given(st.integers(1, 96), st.data())
def test_neighbours_in_the_order_of_lanes_are_of_different_steps(lanes, data):
    size = data.draw(st.sampled_from(divisors(lanes)))
    order = lane_order(lanes, size)
    assert sorted(order) == list(range(lanes))
    steps = lanes // size
    for first in range(0, lanes):
        window = order[np.arange(first, first + steps) % lanes] // size
        assert len(set(window)) == steps


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
    first, second = ([step.granules for step in plan.steps(at, at + 50)] for at in (0, 50))
    assert first != second
    assert {*first} == {*second} and len({*first}) == 50


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
