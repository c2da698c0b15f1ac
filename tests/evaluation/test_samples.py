"""Which pairs and queries the report shows, the map of them, and that they come out of a run."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from embedding_fixtures import small_model
from hypothesis import given
from hypothesis import strategies as st

from pipelines import libraries
from pipelines.evaluation.retrieval import DEPTH, Queries, Retrieved
from pipelines.evaluation.samples import (
    MAX_CHARACTERS,
    choose_queries,
    count_changes,
    place_on_map,
    ranks_of,
    sample_pairs,
    turned_onto,
    write_samples,
)
from pipelines.files import storage
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.vectors.nearest import nearest, unit_length

__all__ = ["small_model"]

RANKS = st.none() | st.integers(1, 10)


def asked(relevant: dict[int, set[int]]) -> Queries:
    return Queries(np.array(sorted(relevant), np.int64), np.zeros((len(relevant), 2)), relevant)


def test_pairs_share_no_document() -> None:
    queries = asked({1: {7}, 2: {7}, 3: {9, 8}, 4: {6}})
    assert sample_pairs(queries, 10) == {1: 7, 3: 8, 4: 6}
    assert sample_pairs(queries, 2) == {1: 7, 3: 8}
    assert sample_pairs(queries, 0) == {}


def test_the_rank_is_that_of_the_first_right_document() -> None:
    found = Retrieved(asked({1: {5}, 2: {5, 6}, 3: {4}, 4: {1}}), {1: [5], 2: [9, 6, 5], 3: [1, 2]})
    assert ranks_of(found) == {1: 1, 2: 2, 3: None, 4: None}


def reciprocal(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / rank


@given(st.lists(st.tuples(RANKS, RANKS), max_size=30), st.integers(1, 4))
def test_queries_are_chosen_by_what_became_of_them(ranks, count) -> None:
    before = {key: pair[0] for key, pair in enumerate(ranks)}
    after = {key: pair[1] for key, pair in enumerate(ranks)}
    gain = {key: reciprocal(after[key]) - reciprocal(before[key]) for key in before}
    chosen = choose_queries(before, after, count)
    changes = count_changes(before, after)
    assert list(chosen) == ["better", "worse", "random"]
    assert len(chosen["better"]) == min(count, changes["better"])
    assert len(chosen["worse"]) == min(count, changes["worse"])
    assert all(gain[key] > 0 for key in chosen["better"])
    assert all(gain[key] < 0 for key in chosen["worse"])
    assert changes["queries"] == len(ranks)
    keys = [key for some in chosen.values() for key in some]
    assert len(keys) == len(set(keys)) == min(len(ranks), len(keys))
    if chosen["better"]:
        least = min(gain[key] for key in chosen["better"])
        assert all(gain[key] <= least for key in gain if key not in chosen["better"])


def retrieved_by(model: Path, queries: dict[int, str], documents: dict[int, str]) -> Retrieved:
    """What a model finds where the first query belongs to the first document, and so on."""
    embed = load_embedder(model)
    found, ids = (np.array(list(texts), np.int64) for texts in (documents, queries))
    asked = unit_length(embed.queries(list(queries.values())))
    best = nearest(asked, unit_length(embed.documents(list(documents.values()))), found, DEPTH)
    ranked: dict[int, list[int]] = {}
    for query, document in zip(best.queries, best.documents, strict=True):
        ranked.setdefault(int(ids[query]), []).append(int(document))
    order = np.argsort(ids)
    relevant = {query: {document: 1.0} for query, document in zip(queries, documents, strict=False)}
    return Retrieved(Queries(ids[order], asked[order], relevant), ranked)


def test_a_run_folder_gets_its_samples(spark, tmp_path, small_model) -> None:
    held_out = tmp_path / "prepared" / "corpus" / "evaluation"
    held_out.mkdir(parents=True)
    texts = [
        "A cat sleeps.",
        "The market fell.",
        "It rains <b>in</b> London.",
        "x" * 999,
        "🐈",
        "a",
    ]
    queries = ["a sleeping animal", "stocks went down", "weather", "xxx", "\U0001f408", "مرحبا"]
    numbers = list(range(1, 7))
    pq.write_table(
        pa.table({"document_id": numbers, "text": texts}), held_out / "documents.parquet"
    )
    table = {"query_id": [-n for n in numbers], "text": queries, "document_id": numbers}
    pq.write_table(pa.table(table), held_out / "queries.parquet")
    # Of a pair for training, and nearer to a query than its own document.
    (held_out / "distractors.parquet").mkdir()
    other = {"document_id": [7], "text": ["xxx"]}
    pq.write_table(pa.table(other), held_out / "distractors.parquet" / "part.parquet")
    settings = {"prepared": {"folder": str(tmp_path / "prepared")}}
    config = parse(settings | {"run": {"folder": str(tmp_path / "run")}})
    found = retrieved_by(
        small_model,
        dict(zip(table["query_id"], queries, strict=True)),
        dict(zip([*numbers, 7], [*texts, *other["text"]], strict=True)),
    )
    models = dict.fromkeys(("before", "after"), small_model)
    retrieved = dict.fromkeys(models, found)
    path = write_samples(spark, config, models, retrieved)
    assert path == tmp_path / "run" / "samples.json"
    samples = storage.read_json(path)
    assert {tuple(pair["texts"]) for pair in samples["pairs"]} == {
        (query, text[:MAX_CHARACTERS]) for query, text in zip(queries, texts, strict=True)
    }
    embed, text_of = load_embedder(small_model), dict(zip(queries, texts, strict=True))
    asked_of = [pair["texts"][0] for pair in samples["pairs"]]
    left = unit_length(embed.queries(asked_of))
    right = unit_length(embed.documents([text_of[query] for query in asked_of]))
    # A query's own document, and that of another.
    cosines, strange = ((left * other).sum(axis=1) for other in (right, np.roll(right, 1, axis=0)))
    for place, pair in enumerate(samples["pairs"]):
        assert pair["before"] == pair["after"]
        assert np.abs(pair["after"]["places"]).max() <= 1
        assert pair["after"]["cosine"] == pytest.approx(cosines[place], abs=1e-4)
        assert pair["after"]["strange_cosine"] == pytest.approx(strange[place], abs=1e-4)
    assert samples["changes"] == {"queries": 6, "better": 0, "worse": 0}
    assert [one["kind"] for one in samples["neighbours"]] == ["random"] * 3
    first = {one["after"]["documents"][0]["text"] for one in samples["neighbours"]}
    assert set(other["text"]) <= first
    for one in samples["neighbours"]:
        rights = [document["right"] for document in one["after"]["documents"]]
        assert rights == [place == one["after"]["rank"] for place in (1, 2, 3)]

    hidden = config.model_copy(
        update={"corpus": config.corpus.model_copy(update={"report_examples": 0})}
    )
    assert write_samples(spark, hidden, models, retrieved) == path
    told = storage.read_json(path)
    assert told["neighbours"] == []
    expected = [pair | {"texts": ["", ""]} for pair in samples["pairs"]]
    assert told["pairs"] == expected

    nothing = config.model_copy(
        update={"evaluation": config.evaluation.model_copy(update={"samples": 0})}
    )
    assert write_samples(spark, nothing, models, retrieved) is None
    assert not path.exists()
    assert write_samples(spark, config, models, {}) is None


def groups(count: int, size: int) -> np.ndarray:
    """Vectors in groups that are far apart, one group after the other."""
    generator = np.random.default_rng(0)
    middles = 10 * generator.normal(size=(count, 16))
    return np.repeat(middles, size, axis=0) + generator.normal(size=(count * size, 16))


def test_what_is_alike_lies_together_and_the_map_is_the_same_again() -> None:
    vectors = groups(5, 8)
    places = place_on_map(vectors, 3)
    assert places.shape == (40, 2)
    assert np.abs(places).max() == pytest.approx(1.0)
    np.testing.assert_array_equal(places, place_on_map(vectors, 3))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1)
    assert (nearest // 8 == np.arange(40) // 8).all()


@pytest.mark.parametrize(
    "vectors",
    [
        np.ones((9, 4)),
        np.zeros((9, 4)),
        np.full((9, 4), np.nan),
        np.arange(6.0).reshape(3, 2),
        np.empty((0, 4)),
    ],
    ids=["one", "zero", "nan", "few", "none"],
)
def test_what_has_no_map_lies_in_the_middle(vectors) -> None:
    np.testing.assert_array_equal(place_on_map(vectors, 1), np.zeros((len(vectors), 2)))


def test_a_turned_map_is_turned_back() -> None:
    places = np.random.default_rng(1).uniform(-1, 1, (30, 2))
    places = (places - (places.max(0) + places.min(0)) / 2) / 1.1
    places /= np.abs(places).max()
    mirrored = places @ np.array([[0.6, 0.8], [0.8, -0.6]])
    back = turned_onto(mirrored, places)
    scale = np.abs(back).max() / np.abs(places).max()
    np.testing.assert_allclose(back, places * scale, atol=0.15)
    assert np.linalg.norm(back - places) < np.linalg.norm(mirrored - places) / 4


def test_without_scikit_learn_there_is_no_map_and_one_line_names_the_extra(monkeypatch, caplog):
    monkeypatch.setattr(libraries, "find_spec", {"sklearn": None}.__getitem__)
    monkeypatch.setattr(libraries, "_LOGGED", set())
    for _ in range(2):
        np.testing.assert_array_equal(place_on_map(np.eye(8), 1), np.zeros((8, 2)))
    assert caplog.messages == [
        "the map of the report is left out: scikit-learn is not installed. Run "
        '`pip install "sentence-pipelines[evaluation]"`'
    ]
