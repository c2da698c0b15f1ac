"""What is hidden, replaced and deleted, and what it follows from."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reconstruction_cases import texts
from steppers import IDS

from pipelines.lanes.files import Side
from pipelines.pretraining.start import (
    are_words,
    generator,
    is_token,
    kept,
    masked,
    shares,
    some_of,
)


def many(examples: int = 400) -> Side:
    return texts(examples, 16, 3)


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1), st.floats(0.01, 0.99))
def test_a_share_of_each_row_is_chosen(rows, share):
    candidates = np.array(rows)
    chosen = some_of(candidates, share, generator(17, 0, 1))
    assert not (chosen & ~candidates).any()
    there = candidates.sum(1)
    expected = np.where(there, np.maximum(np.rint(share * there), 1), 0)
    np.testing.assert_array_equal(chosen.sum(1), expected)


def test_rows_that_are_drawn_in_parts_are_those_that_are_drawn_at_once():
    candidates = generator(1, 0, 0).random((9, 200, 300)) < 0.7
    draw = generator(17, 0, 1)
    tracemalloc.start()
    chosen = some_of(candidates, 0.5, draw)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Keys and ranks of all of them would take 24 bytes each, and more.
    assert most < 20 * candidates.size
    at_once = generator(17, 0, 1)
    keys = np.where(candidates, at_once.random(candidates.shape), np.inf)
    for row, own, taken in zip(candidates[-1], keys[-1], chosen[-1], strict=True):
        lowest = np.argsort(own)[: round(0.5 * row.sum())]
        assert {*np.flatnonzero(taken)} == {*lowest}
    # What is drawn afterwards is the same, too.
    assert draw.random() == at_once.random()


def test_all_places_are_as_likely():
    chosen = some_of(np.ones((4000, 10), bool), 0.3, generator(17, 0, 1))
    np.testing.assert_allclose(chosen.mean(0), 0.3, atol=0.03)


def test_it_follows_from_seed_epoch_and_granule():
    def drawn(*key):
        return generator(*key).random(4).tolist()

    assert drawn(17, 0, 5) == drawn(17, 0, 5)
    others = ((17, 0, 5), (18, 0, 5), (17, 1, 5), (17, 0, 6))
    assert len({tuple(drawn(*key)) for key in others}) == 4
    # Specified to the bit: the same on every machine and with every release.
    expected = [0.63295965, 0.14548746, 0.25405175, 0.76405287]
    np.testing.assert_allclose(drawn(17, 0, 5), expected, rtol=0, atol=1e-8)


def test_words_are_masked_replaced_or_left_as_bert_does():
    side, draw = many(), generator(17, 0, 2)
    words = are_words(side, IDS)
    assert not words[~is_token(side)].any()
    assert not np.isin(side.token_ids[words], IDS.special).any()
    found = masked(side, words, IDS, draw)
    np.testing.assert_array_equal(found[~words], side.token_ids[~words])
    became = found[words]
    assert (became == IDS.mask).mean() == pytest.approx(0.8, abs=0.03)
    same = became == side.token_ids[words]
    # A word may be replaced by itself.
    assert same.mean() == pytest.approx(0.1 + 0.1 / IDS.vocabulary, abs=0.03)
    assert became.min() >= 0
    assert became.max() < IDS.vocabulary


def test_what_is_deleted_leaves_no_gap():
    side, draw = many(), generator(17, 0, 2)
    gone = some_of(are_words(side, IDS), 0.6, draw)
    left = kept(side, is_token(side) & ~gone)
    for ids, length, before, stays in zip(
        left.token_ids, left.lengths, side.token_ids, is_token(side) & ~gone, strict=True
    ):
        np.testing.assert_array_equal(ids[:length], before[stays])
        assert not ids[length:].any()


def test_predictions_have_equal_shares_of_a_mean():
    chosen = np.array([[True, False], [True, True]])
    np.testing.assert_allclose(shares(chosen), [[1 / 3, 0], [1 / 3, 1 / 3]], rtol=1e-6)
    assert not shares(np.zeros((2, 2), bool)).any()
