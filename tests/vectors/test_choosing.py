"""Which of the documents that were found become negatives."""

from dataclasses import replace

import numpy as np
import pytest
from mining_cases import Case

from pipelines.settings import MiningSettings
from pipelines.vectors.mining_texts import Anchors
from pipelines.vectors.nearest import Neighbours
from pipelines.vectors.negatives import NONE, choose, fill, wanted


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.random(4)


@pytest.fixture(scope="module")
def arrays(case) -> Anchors:
    return case.arrays()


def found(arrays: Anchors, count: int) -> Neighbours:
    """Documents 100, 101, ... for each pair, with falling scores."""
    rows = np.repeat(np.arange(len(arrays)), count)
    documents = np.tile(np.arange(100, 100 + count), len(arrays))
    return Neighbours(rows, documents, np.tile(np.linspace(0.9, 0.1, count), len(arrays)))


def test_the_nearest_behind_those_that_are_passed_over(arrays):
    settings = MiningSettings(negatives=3, skip=2)
    assert wanted(settings) == 5
    chosen = choose(found(arrays, 5), arrays, settings)
    assert chosen.documents.tolist() == [[102, 103, 104]] * len(arrays)
    assert chosen.is_whole.all()
    short = choose(found(arrays, 4), arrays, settings)
    assert short.documents.tolist() == [[102, 103, NONE]] * len(arrays)
    assert not short.is_whole.any()


def test_random_ones_of_the_window_depend_on_seed_and_pair_alone(arrays):
    settings = MiningSettings(negatives=4, skip=10, choose="random", window=20)
    assert wanted(settings) == 30
    given = found(arrays, 30)
    chosen = choose(given, arrays, settings)
    assert chosen.is_whole.all()
    assert chosen.documents.min() >= 110
    assert chosen.documents.max() < 130
    assert (np.diff(chosen.scores, axis=1) < 0).all()
    # The same pair in another part.
    half = slice(len(arrays) // 2, None)
    others = replace(arrays, ids=arrays.ids[half], numbers=arrays.numbers[half])
    again = choose(found(others, 30), others, settings)
    np.testing.assert_array_equal(again.documents, chosen.documents[half])
    other = choose(given, arrays, settings.model_copy(update={"seed": 2}))
    assert (other.documents != chosen.documents).any(axis=1).mean() > 0.9


def test_random_ones_are_drawn_evenly():
    arrays = Case.random(1).arrays()
    arrays = replace(arrays, ids=np.arange(4000), numbers=np.arange(4000))
    settings = MiningSettings(negatives=1, choose="random", window=8)
    chosen = choose(found(arrays, 8), arrays, settings)
    counts = np.bincount(chosen.documents.reshape(-1) - 100, minlength=8)
    # 500 each; six standard deviations are 126.
    assert np.abs(counts - 500).max() < 126


def test_what_is_missing_is_drawn_from_documents_that_are_not_the_anchors_own(case, arrays):
    settings = MiningSettings(negatives=5, fill="random")
    begun = choose(found(arrays, 2), arrays, settings)
    filled = fill(begun, arrays, settings)
    assert filled.is_whole.all()
    np.testing.assert_array_equal(filled.documents[:, :2], begun.documents[:, :2])
    assert np.isnan(filled.scores[:, 2:]).all()
    loose = settings.model_copy(update={"relative_margin": None})
    for row, documents in enumerate(filled.documents):
        assert len(set(documents.tolist())) == 5
        possible = {document for _, document in case.left(row, loose)[0]}
        assert set(documents[2:].tolist()) <= possible
    np.testing.assert_array_equal(fill(begun, arrays, settings).documents, filled.documents)


def test_a_pair_stays_short_where_there_are_too_few_documents():
    few = Case.random(6, anchors=4, documents=6, groups=1)
    arrays = few.arrays()
    settings = MiningSettings(negatives=6, fill="random", relative_margin=None)
    nothing = Neighbours.none()
    filled = fill(choose(nothing, arrays, settings), arrays, settings)
    for row, documents in enumerate(filled.documents):
        possible = {document for _, document in few.left(row, settings)[0]}
        assert set(documents.tolist()) == possible | {NONE}
