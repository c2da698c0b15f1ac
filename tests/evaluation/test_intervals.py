"""How sure a difference between two models is, and what is kept to tell it."""

import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pipelines.evaluation.intervals import (
    FEWEST_ITEMS,
    Interval,
    Observations,
    holm,
    mean_intervals,
    pair_intervals,
    read_observations,
    write_observations,
)
from pipelines.evaluation.pairs import similarity_figures
from pipelines.evaluation.retrieval import Queries, Retrieved, retrieval_metrics

RANDOM = np.random.default_rng(5)
NOTHING = Interval(0.0, 0.0, 0.0, p=1.0, differing=0)


def of_means(**values) -> Observations:
    count = len(next(iter(values.values())))
    return Observations(np.arange(count), {name: np.asarray(one) for name, one in values.items()})


def test_the_interval_is_about_that_of_the_paired_t_test():
    before, after = RANDOM.normal(50, 20, 60), RANDOM.normal(53, 20, 60)
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    found = mean_intervals(of_means(figure=before), of_means(figure=after))["figure"]
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.05 * width)
    assert found.high == pytest.approx(expected.high, abs=0.05 * width)


@pytest.fixture
def few_resamples(monkeypatch) -> None:
    """Enough where an interval is far from what it is compared with, or many are counted."""
    monkeypatch.setattr("pipelines.evaluation.intervals._RESAMPLES", 499)
    monkeypatch.setattr("pipelines.evaluation.intervals._MOST_OF_PAIRS", 250)


@pytest.mark.parametrize("queries", [15, 142])
def test_nineteen_of_twenty_intervals_hold_the_true_difference(queries, few_resamples):
    # Many tries in one call: each is a figure of its own on the same queries.
    tries = 400
    change = RANDOM.normal(1.0, 10.0, (tries, queries))
    before = of_means(**{str(place): np.zeros(queries) for place in range(tries)})
    after = of_means(**{str(place): row for place, row in enumerate(change)})
    found = mean_intervals(before, after).values()
    held = np.mean([one.low <= 1.0 <= one.high for one in found])
    assert held == pytest.approx(0.95, abs=0.03)


def test_a_difference_that_can_be_shown_is_shown_four_times_of_five():
    queries, tries = 80, 400
    before = of_means(figure=np.zeros(queries))
    noise = RANDOM.normal(0.0, 10.0, (tries, queries))
    detectable = mean_intervals(before, of_means(figure=noise[0]))["figure"].detectable
    exact = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * noise[0].std() / np.sqrt(queries)
    assert detectable == pytest.approx(exact, rel=0.05)
    shown = stats.ttest_1samp(noise + exact, 0, axis=1).pvalue < 0.05
    assert shown.mean() == pytest.approx(0.8, abs=0.1)


def grouped(model: Observations, groups) -> Observations:
    return Observations(model.items, model.values, np.asarray(groups))


def test_groups_are_drawn_and_flipped_as_a_whole():
    # Eight threads, in each of which all queries gain or lose alike.
    by_thread = np.array([3.0, 5.0, 2.0, 4.0, 6.0, -1.0, 2.0, 3.0])
    groups = np.repeat(np.arange(8) * 100, 25)
    before, after = of_means(figure=np.zeros(200)), of_means(figure=np.repeat(by_thread, 25))
    alone = mean_intervals(before, after)["figure"]
    found = mean_intervals(before, grouped(after, groups))["figure"]
    assert (alone.groups, found.groups, found.differing) == (None, 8, 8)
    exact = stats.ttest_1samp(by_thread, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.1)
    assert found.high - found.low > 5 * (alone.high - alone.low)
    # Of the 256 flips as large sums are those of all threads, or all but the one that lost.
    flips = np.array(np.meshgrid(*[[-1, 1]] * 8)).reshape(8, -1)
    assert found.p == np.mean(np.abs(by_thread @ flips) >= by_thread.sum())
    # Either model may be of a release that did not know of groups.
    assert mean_intervals(grouped(before, groups), after)["figure"] == found


def test_groups_of_one_query_are_no_groups():
    before, after = RANDOM.normal(50, 20, 60), RANDOM.normal(53, 20, 60)
    model = of_means(figure=after)
    alone = mean_intervals(of_means(figure=before), model)
    assert mean_intervals(of_means(figure=before), grouped(model, 9 * np.arange(60))) == alone


def test_intervals_of_unequal_groups_hold_the_true_difference(few_resamples):
    tries, sizes = 400, RANDOM.integers(1, 60, 23)
    groups = np.repeat(np.arange(23), sizes)
    change = RANDOM.normal(1.0, 10.0, (tries, len(groups)))
    change += RANDOM.normal(0.0, 10.0, (tries, 23))[:, groups]
    before = of_means(**{str(place): np.zeros(len(groups)) for place in range(tries)})
    after = of_means(**{str(place): row for place, row in enumerate(change)})
    for model, least in ((after, 0.0), (grouped(after, groups), 0.91)):
        found = mean_intervals(before, model).values()
        held = np.mean([one.low <= 1.0 <= one.high for one in found])
        assert held >= least
        # Queries taken for independent ones hold it in every second try.
        assert least or held < 0.7


def test_one_group_says_nothing():
    model = of_means(figure=RANDOM.normal(size=50))
    assert mean_intervals(model, grouped(model, np.zeros(50))) == {}


@pytest.mark.parametrize(
    ("changed", "of", "p"), [(4, 10, 0.125), (4, 2000, 0.125), (6, 10, 0.03125), (0, 10, 1.0)]
)
def test_the_test_of_few_queries_is_exact(changed, of, p):
    values = np.zeros(of)
    values[:changed] = 50.0
    found = mean_intervals(of_means(figure=np.zeros(of)), of_means(figure=values))["figure"]
    assert (found.p, found.differing) == (p, changed)
    assert found.verdict() == ("better" if changed == 6 else "not significant")


def test_the_test_of_many_queries_is_that_of_the_t_test():
    change = RANDOM.normal(0.3, 2.0, 500)
    found = mean_intervals(of_means(figure=np.zeros(500)), of_means(figure=change))["figure"]
    assert found.p == pytest.approx(stats.ttest_1samp(change, 0).pvalue, abs=0.01)
    signs = stats.permutation_test(
        (change,), np.mean, permutation_type="samples", n_resamples=4999, rng=RANDOM
    )
    assert found.p == pytest.approx(signs.pvalue, abs=0.01)


def test_pairs_are_exchanged_in_the_test(few_resamples):
    scores = RANDOM.normal(size=60)
    noisy = scores + RANDOM.normal(0, 1.0, 60)
    few = noisy.copy()
    few[:4] = scores[:4] * 9
    before = of_means(cosine=noisy, score=scores)
    found = pair_intervals(similarity_figures, before, of_means(cosine=few, score=scores))
    assert (found["spearman"].differing, found["spearman"].verdict()) == (4, "not significant")
    # The scale of cosines is no quality.
    close = 0.01 * (scores + RANDOM.normal(0, 0.3, 60))
    model = of_means(cosine=close, score=scores)
    assert pair_intervals(similarity_figures, before, model)["spearman"].verdict() == "better"
    same = pair_intervals(similarity_figures, before, before)["spearman"]
    assert (same.differing, same.p, same.low, same.high) == (0, 1.0, 0.0, 0.0)


@pytest.mark.slow
def test_a_hundred_thousand_queries_are_compared_in_seconds():
    count = 100_000
    values = {"figure": RANDOM.normal(0.1, 20, count)}
    zeros = of_means(**{name: np.zeros(count) for name in values})
    began = time.perf_counter()
    assert len(mean_intervals(zeros, of_means(**values))) == 1
    # 0.4 s on a core of 2024.
    assert time.perf_counter() - began < 30


def test_holm_is_that_of_statsmodels():
    # Of `statsmodels.stats.multitest.multipletests([.01, .04, .03, .005], method="holm")`.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_too_few_queries_and_what_is_no_number_have_none():
    few = of_means(figure=np.zeros(FEWEST_ITEMS - 1))
    assert mean_intervals(few, few) == {}
    both = {"whole": np.ones(50), "broken": np.full(50, np.nan)}
    assert list(mean_intervals(of_means(**both), of_means(**both))) == ["whole"]


def test_other_items_are_not_compared():
    other = Observations(np.arange(1, 51), {"figure": np.zeros(50)})
    with pytest.raises(ValueError, match="different items"):
        mean_intervals(of_means(figure=np.zeros(50)), other)


def test_correlations_are_drawn_pair_by_pair(few_resamples):
    scores = RANDOM.normal(size=300)
    noisy, close = (scores + RANDOM.normal(0, spread, 300) for spread in (2.0, 0.5))
    before, after = (of_means(cosine=cosines, score=scores) for cosines in (noisy, close))
    found = pair_intervals(similarity_figures, before, after)["spearman"]
    old, new = (similarity_figures(cosines, scores)["spearman"] for cosines in (noisy, close))
    assert 0 < found.low < new - old < found.high
    # The two models' errors are of the same pairs, which an unpaired interval would not know.
    near = of_means(cosine=noisy + RANDOM.normal(0, 0.01, 300), score=scores)
    paired = pair_intervals(similarity_figures, before, near)["spearman"]
    assert paired.high - paired.low < 0.1 * (found.high - found.low)


def test_too_few_of_a_label_have_no_interval(few_resamples):
    labels = np.array([1.0, 1.0] + [0.0] * 18)
    model = of_means(cosine=RANDOM.random(20), score=labels)
    other = of_means(cosine=RANDOM.random(20), score=labels)
    assert pair_intervals(similarity_figures, model, other) == {}


def test_only_figures_of_both_are_compared():
    old, new = of_means(a=np.zeros(20), b=np.zeros(20)), of_means(a=np.ones(20), c=np.ones(20))
    assert list(mean_intervals(old, new)) == ["a"]


@pytest.mark.parametrize(
    ("ends", "lower_is_better", "told"),
    [
        ((0.1, 2.0), False, "better"),
        ((-2.0, -0.1), False, "worse"),
        ((0.1, 2.0), True, "worse"),
        ((-2.0, -0.1), True, "better"),
        ((-0.1, 2.0), False, "not significant"),
        ((0.0, 0.0), True, "not significant"),
    ],
)
def test_in_words(ends, lower_is_better, told):
    assert Interval(*ends, detectable=1.0).verdict(lower_is_better=lower_is_better) == told


def found(ranked: dict[int, list[int]]) -> Retrieved:
    relevant = {key: {key: 1.0} for key in ranked}
    return Retrieved(
        Queries(np.array(sorted(ranked)), np.zeros((len(ranked), 2)), relevant), ranked
    )


def test_figures_of_one_query_are_compared_with_those_of_the_same():
    keys = list(range(40))
    first = {key: [key] if key % 2 else [-1, key] for key in keys}
    # The same ranks, and the queries in another order.
    again = {key: first[key] for key in reversed(keys)}
    before, after = found(first).observations, found(again).observations
    assert mean_intervals(before, after) == dict.fromkeys(
        retrieval_metrics(first, found(first).queries.relevant), NOTHING
    )


NUMBERS = st.lists(st.floats(allow_nan=False, width=64), min_size=1, max_size=6)


@given(sets=st.dictionaries(st.text(min_size=1, max_size=5), NUMBERS, max_size=3))
def test_what_is_written_is_read(sets, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "observations.parquet"
    given_sets = {
        name: Observations(
            np.arange(len(numbers)) - 2, {"a": np.array(numbers), "b": -np.array(numbers)}
        )
        for name, numbers in sets.items()
    }
    write_observations(path, given_sets)
    found = read_observations(path)
    assert found.keys() == given_sets.keys()
    for name, one in found.items():
        assert list(one.values) == ["a", "b"]
        np.testing.assert_array_equal(one.items, given_sets[name].items)
        assert one.groups is None
        for value, numbers in one.values.items():
            np.testing.assert_array_equal(numbers, given_sets[name].values[value])


def test_without_a_file_nothing_is_known(tmp_path):
    assert read_observations(tmp_path / "observations.parquet") == {}


def test_groups_are_kept_and_files_without_them_are_read(tmp_path):
    path, items = tmp_path / "observations.parquet", np.arange(3)
    values = {"a": np.zeros(3), "b": np.ones(3)}
    grouped = Observations(items, values, np.array([7, 7, -1]))
    write_observations(path, {"packages": grouped, "alone": Observations(items, values)})
    found = read_observations(path)
    np.testing.assert_array_equal(found["packages"].groups, [7, 7, -1])
    assert found["alone"].groups is None
    pq.write_table(pq.read_table(path).drop(["group"]), path)
    earlier = read_observations(path)
    assert earlier["packages"].groups is None
    np.testing.assert_array_equal(earlier["packages"].items, items)
