"""What a search keeps and what filters drop, against brute force."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mining_cases import WIDTH, Case

from pipelines.settings import MiningSettings
from pipelines.vectors import index
from pipelines.vectors import negatives as searches
from pipelines.vectors import negatives as selection
from pipelines.vectors.embedding import vector_array
from pipelines.vectors.nearest import Neighbours
from pipelines.vectors.negatives import EXACT, INDEX, Nearest, Selection, score_limits
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
    monkeypatch.setattr(searches, "BLOCK_PAIRS", 16)
    monkeypatch.setattr(searches, "BLOCK_DOCUMENTS", 96)
    monkeypatch.setattr(searches, "FIRST_DOCUMENTS", 32)
    monkeypatch.setattr(selection, "WAITING", 500)
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
        monkeypatch.setattr(selection, "WAITING", waiting)
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
    from pipelines.vectors import mining_texts as anchors

    case = Case.random(5)
    arrays = case.arrays()
    rows = np.repeat(np.arange(len(case.pairs)), 20)
    documents = np.random.default_rng(1).integers(0, len(case.documents), len(rows))
    wanted = [
        bool(case.anchor_groups[case.pairs[row][0]] & case.document_groups[document])
        for row, document in zip(rows, documents, strict=True)
    ]
    for most in (2**21, 7, 1):
        monkeypatch.setattr(anchors, "_LOOKED_UP", most)
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
    monkeypatch.setattr(searches, "_FOUND_AT_ONCE", 900)
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

        patched.setattr(searches, "search_index", search)
        INDEX.find(found, indexed, lambda: None)
    # 5 times 2 and 32 documents, and the most positives of an anchor.
    assert asked[0][0] == len(case.pairs)
    assert 42 < asked[0][1] < 50
    assert 0 < asked[1][0] <= asked[0][0]
    assert asked[1][1] == 8 * asked[0][1]
    assert asked[-1][1] == len(case.documents)
    short = {row for row in range(len(case.pairs)) if len(case.left(row, settings)[0]) < 5}
    assert {*np.flatnonzero(found.are_short()).tolist()} == short
