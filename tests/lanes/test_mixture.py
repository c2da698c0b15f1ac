"""The order of steps over several sources: shares by weight, and none twice before all others."""

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InputError
from pipelines.lanes.plan import (
    BatchPlan,
    SourceShare,
    epoch_order,
    plan_segments,
    plan_sources,
    share,
    steps_by_weight,
)
from pipelines.lanes.stage import Arrangement, check_rows, lanes_for
from pipelines.settings.load import parse
from pipelines.tokens.summary import SourceTokens

weights = st.floats(0.001, 1000)


@st.composite
def mixed_plans(draw) -> BatchPlan:
    """Of one to four sources with a few rows each, and steps of each in every epoch."""
    rows = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))
    lanes, granules = 4, draw(st.sampled_from([1, 2, 4]))
    sizes = [count * (lanes // granules) for count in rows]
    asked = draw(st.lists(st.floats(0.2, 5), min_size=len(rows), max_size=len(rows)))
    counts = steps_by_weight(sum(sizes), asked)
    first = np.cumsum([0, *sizes])
    return BatchPlan(
        lanes=lanes,
        rows=sum(rows),
        granules_per_step=granules,
        seed=draw(st.integers(0, 2**31)),
        sources=tuple(
            SourceShare(first=int(at), steps=size, per_epoch=max(count, 0))
            for at, size, count in zip(first[:-1], sizes, counts, strict=True)
        ),
    )


plans = mixed_plans().filter(lambda plan: all(one.per_epoch for one in plan.sources))


@given(st.integers(1, 10_000), st.lists(weights, min_size=1, max_size=8))
def test_shares_are_within_one_step_of_what_was_asked(total, asked):
    counts = steps_by_weight(total, asked)
    assert sum(counts) == total
    for count, weight in zip(counts, asked, strict=True):
        assert abs(count - total * weight / sum(asked)) < 1 + 1e-6


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_shares_by_size_are_the_sizes(sizes):
    assert steps_by_weight(sum(sizes), sizes) == tuple(sizes)


@given(plans)
def test_each_epoch_has_the_steps_of_each_source_that_were_asked(plan):
    for epoch in range(3):
        steps = plan.steps(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        counted = Counter(step.source for step in steps)
        assert [counted[number] for number in range(len(plan.sources))] == [
            one.per_epoch for one in plan.sources
        ]


@given(plans)
def test_any_stretch_from_the_start_has_about_the_shares_of_the_epoch(plan):
    counted = np.zeros(len(plan.sources))
    asked = np.array([one.per_epoch for one in plan.sources]) / plan.steps_per_epoch
    for step in plan.steps(0, plan.steps_per_epoch):
        counted[step.source] += 1
        assert (np.abs(counted - counted.sum() * asked) < 1 + len(plan.sources)).all()


@given(plans)
def test_no_step_comes_again_before_all_of_its_source_have_come(plan):
    seen = {number: [] for number in range(len(plan.sources))}
    for step in plan.steps(0, 4 * plan.steps_per_epoch):
        first = step.granules[0]
        place = first.row * plan.steps_per_row + first.lane // plan.granules_per_step
        seen[step.source].append((step.visit, place))
    for number, source in enumerate(plan.sources):
        ordered = sorted(range(len(seen[number])), key=lambda i: seen[number][i][0])
        assert ordered == list(range(len(seen[number])))
        for visit, made in groupby(seen[number], key=lambda one: one[0]):
            places = [place for _, place in made]
            assert len(set(places)) == len(places)
            whole = visit < len(seen[number]) // source.steps
            assert not whole or set(places) == set(range(source.first, source.first + source.steps))


@given(plans)
def test_a_step_is_of_one_row_of_its_source_whoever_computes_it(plan):
    for step in plan.steps(0, plan.steps_per_epoch):
        rows = {address.row for address in step.granules}
        source = plan.sources[step.source]
        assert len(rows) == 1
        assert source.first <= rows.pop() * plan.steps_per_row < source.first + source.steps
        for workers in range(1, plan.granules_per_step + 1):
            if plan.granules_per_step % workers == 0:
                shares = [share(step, rank, workers) for rank in range(workers)]
                assert tuple(one for part in shares for one in part) == step.granules


@given(plans, st.data())
def test_a_mixture_resumes_at_any_step(plan, data):
    last = 3 * plan.steps_per_epoch
    at = data.draw(st.integers(0, last))
    assert list(plan.steps(0, last))[at:] == list(plan.steps(at, last))


def test_sources_mix_afresh_in_each_epoch_and_by_the_seed():
    shares = (
        SourceShare(first=0, steps=40, per_epoch=40),
        SourceShare(first=40, steps=10, per_epoch=10),
    )
    orders = [epoch_order(shares, *given) for given in ((1, 0), (1, 1), (2, 0))]
    assert len({tuple(order.steps) for order in orders}) == 3
    assert len({tuple(order.sources) for order in orders}) == 3
    assert [{*order.visits.tolist()} for order in orders] == [{0}, {1}, {0}]


def test_a_small_source_is_read_again_and_a_large_one_goes_on_in_the_next_epoch():
    shares = (
        SourceShare(first=0, steps=90, per_epoch=50),
        SourceShare(first=90, steps=10, per_epoch=50),
    )
    first, second = (epoch_order(shares, 3, epoch) for epoch in (0, 1))
    large = [order.steps[order.sources == 0] for order in (first, second)]
    assert len({*large[0], *large[1][:40]}) == 90
    assert sorted(first.visits[first.sources == 1]) == sorted([*range(5)] * 10)
    assert sorted(second.visits[second.sources == 1]) == sorted([*range(5, 10)] * 10)


buckets = st.dictionaries(st.sampled_from([8, 16, 24, 32]), st.integers(0, 300), min_size=1)


@given(st.lists(buckets, min_size=1, max_size=4), st.sampled_from([1, 2, 6]), st.integers(2, 8))
def test_rows_of_sources_follow_one_another(counts, lanes, granule):
    planned = plan_sources(counts, lanes, granule)
    row = example = 0
    for own, of_source in zip(planned, counts, strict=True):
        alone = plan_segments(of_source, lanes, granule)
        assert [(one.length, one.rows) for one in own] == [(one.length, one.rows) for one in alone]
        for segment in own:
            assert segment.first_row == row
            row += segment.rows
        assert all(example <= one.first_example for one in own)
        example += sum(of_source.values())
        assert all(one.first_example + one.examples <= example for one in own)


@pytest.mark.parametrize("counts", [{8: 40}, {8: 3, 16: 50}])
def test_one_source_is_planned_as_without_any(counts):
    assert plan_sources([counts], 2, 4) == (plan_segments(counts, 2, 4),)


def test_the_smallest_source_decides_how_many_lanes_there_are_at_most():
    config = parse({"lanes": {"count": 48, "granule": 64}, "training": {"granules_per_step": 2}})
    assert lanes_for(config, 10**7, []) == 48
    assert lanes_for(config, 10**7, [10**7 - 48 * 64 * 8, 48 * 64 * 8]) == 48
    assert lanes_for(config, 10**7, [10**7 - 24 * 64 * 8, 24 * 64 * 8]) == 24
    # It never has fewer lanes than a step has granules.
    assert lanes_for(config, 10**7, [10**7 - 10, 10]) == 2


def test_a_source_that_fills_no_row_is_refused():
    planned = plan_sources([{8: 40}, {8: 3}, {8: 16}], 2, 4)
    arrangement = Arrangement(2, 4, planned, {}, 0, None)
    sources = [SourceTokens(name, n, 0, 0, {}) for name, n in (("a", 40), ("b", 3), ("c", 16))]
    told = r"^lanes\.granule: 3 examples of source b do not fill a row .* 4\. Set it to at most 2, "
    with pytest.raises(InputError, match=told):
        check_rows(arrangement, sources, None, None)
    whole = Arrangement(2, 4, planned[::2], {}, 0, None)
    check_rows(whole, sources[::2], None, None)
    assert whole.first_rows == (0, 5)
