"""What a search keeps, what filters drop, against brute force, and what becomes negatives."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mining_cases import WIDTH, Case

from pipelines.settings import MiningSettings
from pipelines.vectors import index, mining_texts, negatives
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.mining_texts import Anchors
from pipelines.vectors.nearest import Neighbours
from pipelines.vectors.negatives import (
    EXACT,
    INDEX,
    NONE,
    Nearest,
    Selection,
    choose,
    fill,
    score_limits,
    wanted,
)
from pipelines.vectors.store import VectorFile, VectorTable

SETTINGS = {
    "all scores": {"relative_margin": None},
    "relative margin": {},
    "both margins": {"relative_margin": 0.02, "absolute_margin": 0.1},
    "margin of the lowest": {"relative_margin": 0.02, "margin_positive": "lowest"},
    "bounds": {"relative_margin": None, "min_score": 0.2, "max_score": 0.6},
    "margin, and groups are allowed": {"same_group": True},
}


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.random(3)


@pytest.fixture(scope="module")
def table(case, tmp_path_factory) -> VectorTable:
    """The documents in two files of unequal size."""
    folder = tmp_path_factory.mktemp("documents")
    files, first = [], 0
    for number, rows in enumerate((450, len(case.documents) - 450)):
        some = case.documents[first : first + rows]
        column = vector_array(some, np.ones(rows, bool))
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(pa.table({"vector": column}), path)
        files.append(VectorFile(path, first, rows))
        first += rows
    return VectorTable(folder, tuple(files), "vector", None, None, None, WIDTH)


@pytest.mark.parametrize("k", [3, 60])
@pytest.mark.parametrize("given", SETTINGS.values(), ids=SETTINGS)
def test_an_exact_search_finds_what_brute_force_finds(case, table, given, k, monkeypatch, request):
    settings = MiningSettings(**given)
    found = Selection(case.arrays(), settings, k)
    # Several blocks of pairs, of documents, and of what waits to be sorted.
    monkeypatch.setattr(negatives, "BLOCK_PAIRS", 16)
    monkeypatch.setattr(negatives, "BLOCK_DOCUMENTS", 96)
    monkeypatch.setattr(negatives, "FIRST_DOCUMENTS", 32)
    monkeypatch.setattr(negatives, "WAITING", 500)
    EXACT.find(found, table, lambda: None)
    result = found.result()
    told: Counter[str] = Counter()
    for row in range(len(case.pairs)):
        wanted, dropped = case.left(row, settings)
        mine = result.queries == row
        assert result.documents[mine].tolist() == [document for _, document in wanted[:k]]
        assert result.scores[mine].tolist() == [score for score, _ in wanted[:k]]
        last = wanted[k - 1][0] if len(wanted) >= k else -np.inf
        near = [reason for score, reason in dropped if score >= last]
        told.update({reason: min(count, k) for reason, count in Counter(near).items()})
    assert {reason: count for reason, count in found.dropped().items() if count} == dict(told)
    assert {"known positive", "same text"} <= set(told)
    assert ("too near the positive" in told) == ("margin" in request.node.callspec.id)


def test_nothing_is_found_for_vectors_that_are_no_numbers(case, table):
    arrays = case.arrays()
    arrays.vectors[4] = np.nan
    found = Selection(arrays, MiningSettings(), 3)
    EXACT.find(found, table, lambda: None)
    assert sorted({*range(len(arrays))} - {*found.result().queries.tolist()}) == [4]


def test_a_limit_is_below_a_positive_that_is_far():
    scores = np.array([0.8, 0.0, -0.4])
    relative = score_limits(scores, MiningSettings(relative_margin=0.25))
    np.testing.assert_allclose(relative, [0.6, 0.0, -0.5])
    lower = score_limits(scores, MiningSettings(relative_margin=0.25, absolute_margin=0.1))
    np.testing.assert_allclose(lower, [0.6, -0.1, -0.5])
    assert np.isinf(score_limits(scores, MiningSettings(relative_margin=None))).all()


def test_the_nearest_are_the_same_whatever_waits(monkeypatch):
    draw = np.random.default_rng(0)
    rows, documents = draw.integers(0, 7, 2000), np.arange(2000)
    scores = np.round(draw.random(2000), 2)
    results = []
    for waiting in (1, 300, 10_000):
        monkeypatch.setattr(negatives, "WAITING", waiting)
        nearest = Nearest(9, 5, floor=0.1)
        for start in range(0, 2000, 130):
            some = slice(start, start + 130)
            nearest.add(Neighbours(rows[some], documents[some], scores[some]))
        results.append(nearest.result())
    for other in results[1:]:
        for name in ("queries", "documents", "scores"):
            np.testing.assert_array_equal(getattr(results[0], name), getattr(other, name))
    assert np.bincount(results[0].queries, minlength=9).tolist() == [5] * 7 + [0] * 2
    # Of pairs of which fewer are known, all that are not below the floor may come.
    assert nearest.bounds[7:].tolist() == [0.1, 0.1]


def test_groups_are_compared_some_at_a_time(monkeypatch):
    case = Case.random(5)
    arrays = case.arrays()
    rows = np.repeat(np.arange(len(case.pairs)), 20)
    documents = np.random.default_rng(1).integers(0, len(case.documents), len(rows))
    wanted = [
        bool(case.anchor_groups[case.pairs[row][0]] & case.document_groups[document])
        for row, document in zip(rows, documents, strict=True)
    ]
    for most in (2**21, 7, 1):
        monkeypatch.setattr(mining_texts, "_LOOKED_UP", most)
        assert arrays.are_of_group(rows, documents).tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)


@pytest.fixture(scope="module")
def indexed(table) -> VectorTable:
    """With an index that is built in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "collect_from_tasks", lambda session, tasks, work: [*work(tasks)])
        INDEX.prepare(None, table)
    return table


@pytest.mark.parametrize("given", SETTINGS.values(), ids=SETTINGS)
def test_an_index_finds_most_of_what_brute_force_finds(case, indexed, given, monkeypatch):
    settings, k = MiningSettings(**given), 8
    # Several blocks of pairs.
    monkeypatch.setattr(negatives, "_FOUND_AT_ONCE", 900)
    found = Selection(case.arrays(), settings, k)
    INDEX.find(found, indexed, lambda: None)
    result = found.result()
    assert len(set(zip(result.queries, result.documents, strict=True))) == len(result.queries)
    hits = wanted = 0
    for row in range(len(case.pairs)):
        left = [document for _, document in case.left(row, settings)[0]]
        mine = result.documents[result.queries == row].tolist()
        assert set(mine) <= set(left)
        hits += len(mine)
        wanted += len(left[:k])
    assert hits > 0.97 * wanted


def test_an_index_is_asked_again_for_pairs_that_filters_leave_with_little(case, indexed):
    settings = MiningSettings(relative_margin=0.9)
    found = Selection(case.arrays(), settings, 5)
    asked = []
    with pytest.MonkeyPatch.context() as patched:

        def search(table, vectors, k):
            asked.append((len(vectors), k))
            return index.search_index(table, vectors, k)

        patched.setattr(negatives, "search_index", search)
        INDEX.find(found, indexed, lambda: None)
    # 5 times 2 and 32 documents, and the most positives of an anchor.
    assert asked[0][0] == len(case.pairs)
    assert 42 < asked[0][1] < 50
    assert 0 < asked[1][0] <= asked[0][0]
    assert asked[1][1] == 8 * asked[0][1]
    assert asked[-1][1] == len(case.documents)
    short = {row for row in range(len(case.pairs)) if len(case.left(row, settings)[0]) < 5}
    assert {*np.flatnonzero(found.are_short()).tolist()} == short


@pytest.fixture(scope="module")
def arrays(case) -> Anchors:
    return case.arrays()


def nearest(arrays: Anchors, count: int) -> Neighbours:
    """Documents 100, 101, ... for each pair, with falling scores."""
    rows = np.repeat(np.arange(len(arrays)), count)
    documents = np.tile(np.arange(100, 100 + count), len(arrays))
    return Neighbours(rows, documents, np.tile(np.linspace(0.9, 0.1, count), len(arrays)))


def test_the_nearest_behind_those_that_are_passed_over(arrays):
    settings = MiningSettings(negatives=3, skip=2)
    assert wanted(settings) == 5
    chosen = choose(nearest(arrays, 5), arrays, settings)
    assert chosen.documents.tolist() == [[102, 103, 104]] * len(arrays)
    assert chosen.is_whole.all()
    short = choose(nearest(arrays, 4), arrays, settings)
    assert short.documents.tolist() == [[102, 103, NONE]] * len(arrays)
    assert not short.is_whole.any()


def test_random_ones_of_the_window_depend_on_seed_and_pair_alone(arrays):
    settings = MiningSettings(negatives=4, skip=10, choose="random", window=20)
    assert wanted(settings) == 30
    given = nearest(arrays, 30)
    chosen = choose(given, arrays, settings)
    assert chosen.is_whole.all()
    assert chosen.documents.min() >= 110
    assert chosen.documents.max() < 130
    assert (np.diff(chosen.scores, axis=1) < 0).all()
    # The same pair in another part.
    half = slice(len(arrays) // 2, None)
    others = replace(arrays, ids=arrays.ids[half], numbers=arrays.numbers[half])
    again = choose(nearest(others, 30), others, settings)
    np.testing.assert_array_equal(again.documents, chosen.documents[half])
    other = choose(given, arrays, settings.model_copy(update={"seed": 2}))
    assert (other.documents != chosen.documents).any(axis=1).mean() > 0.9


def test_random_ones_are_drawn_evenly():
    arrays = Case.random(1).arrays()
    arrays = replace(arrays, ids=np.arange(4000), numbers=np.arange(4000))
    settings = MiningSettings(negatives=1, choose="random", window=8)
    chosen = choose(nearest(arrays, 8), arrays, settings)
    counts = np.bincount(chosen.documents.reshape(-1) - 100, minlength=8)
    # 500 each; six standard deviations are 126.
    assert np.abs(counts - 500).max() < 126


def test_what_is_missing_is_drawn_from_documents_that_are_not_the_anchors_own(case, arrays):
    settings = MiningSettings(negatives=5, fill="random")
    begun = choose(nearest(arrays, 2), arrays, settings)
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
