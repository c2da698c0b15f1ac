"""Retrieval by vectors and BM25 together: a form of each set beside that by vectors alone."""

import numpy as np
import pytest
from embedding_fixtures import small_model
from measured_sets import write_set

from pipelines.errors import InputError
from pipelines.evaluation.base import WHOLE, Form
from pipelines.evaluation.beir import EVALUATION as BEIR
from pipelines.evaluation.retrieval import EVALUATION as HELD_OUT
from pipelines.evaluation.retrieval import Rankings, ndcg_at
from pipelines.evaluation.sets import NamedSet, digest_sets, evaluate, metric_named
from pipelines.models.folder import read_encoder, write_encoder
from pipelines.models.inference.embedder import load_embedder
from pipelines.models.lsa.modules import count_terms, with_terms
from pipelines.settings.encoder import LsaSettings
from pipelines.settings.load import parse
from pipelines.vectors.bm25 import WordQueries, best_by_words, word_statistics
from pipelines.vectors.nearest import Neighbours, best_of, unit_length

__all__ = ["small_model"]

DOCUMENTS = {
    "d1": ("Error E4711", "The pump has lost its pressure."),
    "d2": ("Error E4712", "The pump is too hot to go on."),
    "d3": ("Pumps", "Water that is cold is lifted from a well."),
    "d4": ("Wells", "Deep holes with drinking water in them."),
    "d5": ("Heat", "Engines that overheat stop by themselves."),
    "d6": ("", "A market fell by three per cent."),
    "q3": ("", "overheated engine stops"),
}
QUERIES = {
    "q1": "E4712",
    "q2": "what is a spring of fresh groundwater",
    "q3": "overheated engine stops",
    "q4": "xyzzy",
}
QRELS = [("q1", "d2", 1), ("q2", "d4", 2), ("q2", "d3", 1), ("q3", "d5", 1), ("q4", "d6", 1)]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = write_set(tmp_path_factory.mktemp("sets") / "pumps", DOCUMENTS, QUERIES, QRELS)
    section = {"retrieval": False, "geometry": False, "hybrid": True}
    section["retrieval_sets"] = [str(folder)]
    return parse({"evaluation": section, "objective": {"dimensions": [8]}})


@pytest.fixture(scope="module")
def apart(config):
    """With the encoder measured without its lexical features, too."""
    return config.changed("encoder", lsa=LsaSettings(dimensions=16))


@pytest.fixture(scope="module")
def plain(spark, apart, small_model) -> tuple[dict, list[str]]:
    """Figures of a model without such features, and the names of what was retrieved for them."""
    retrieved = {}
    return evaluate(spark, apart, small_model, retrieved.__setitem__), list(retrieved)


def expected_ndcg(embed, width: int | None) -> tuple[float, float, float]:
    """Of vectors alone, of both rankings fused, and of BM25 alone."""
    names = list(DOCUMENTS)
    texts = [f"{title} {text}".strip() for title, text in DOCUMENTS.values()]
    asked_of, there = (
        unit_length(embed(side)[:, :width]) for side in (list(QUERIES.values()), texts)
    )
    cosines = asked_of @ there.T
    asked = WordQueries.of(list(QUERIES.values()))
    words = best_by_words(
        asked, word_statistics(asked, texts), [(texts, np.arange(len(texts)))], 10
    )
    dense, fused, alone = [], [], []
    for number, query in enumerate(QUERIES):
        cosine = {name: cosines[number, place] for place, name in enumerate(names)}
        of_query = words.queries == number
        scores = zip(words.documents[of_query], words.scores[of_query], strict=True)
        worded = {names[one]: score for one, score in scores if names[one] != query}
        most = max(worded.values(), default=1.0)
        sums = {
            name: cosine[name] + 0.1 * worded.get(name, 0.0) / most
            for name in names
            if name != query
        }
        gains = {document: gain for asked, document, gain in QRELS if asked == query}
        for found, scores in ((dense, cosine), (fused, sums)):
            best = sorted(sums, key=lambda name: -scores[name])
            found.append(ndcg_at(best, gains, 10))
        alone.append(ndcg_at(list(worded), gains, 10))
    return tuple(100 * float(np.mean(found)) for found in (dense, fused, alone))


def test_each_set_is_measured_with_words_too(plain, small_model) -> None:
    figures, retrieved = plain
    names = ["pumps", "pumps+bm25", "pumps@encoder", "pumps@encoder+bm25", "pumps@8"]
    assert list(figures) == retrieved == [*names, "pumps@8+bm25"]
    embed = load_embedder(small_model)
    for name, width in (("pumps", None), ("pumps@8", 8)):
        dense, fused, alone = expected_ndcg(embed, width)
        assert len({dense, fused, alone}) == 3
        assert figures[name]["ndcg@10"] == pytest.approx(dense, abs=1e-6)
        hybrid = figures[f"{name}+bm25"]
        assert hybrid["ndcg@10"] == pytest.approx(fused, abs=1e-6)
        assert hybrid["bm25_ndcg@10"] == pytest.approx(alone, abs=1e-6)
        assert hybrid.keys() == {*figures[name], "bm25_ndcg@10"}
        assert hybrid["documents"] == 7


def test_a_lexical_model_is_measured_without_its_words_too(
    spark, apart, plain, small_model, tmp_path
) -> None:
    spec, weights = read_encoder(small_model)
    # So long that they decide about the ranks.
    words = 9 * np.random.default_rng(3).normal(size=(spec.vocabulary, 16)).astype(np.float32)
    write_encoder(tmp_path / "lexical", *with_terms(spec, weights, words), small_model, "")
    assert (count_terms(small_model), count_terms(tmp_path / "lexical")) == (0, 16)
    figures, names = plain
    lexical = evaluate(spark, apart, tmp_path / "lexical")
    assert list(lexical) == names
    assert figures["pumps@encoder"] == figures["pumps"] != lexical["pumps"]
    for name in ("pumps", "pumps+bm25"):
        encoder = name.replace("pumps", "pumps@encoder")
        assert lexical[encoder] == pytest.approx(figures[name], abs=1e-6)


def test_judged_sets_are_ranked_with_words_unless_asked_otherwise() -> None:
    judged, held_out = (NamedSet("set", "", kind) for kind in (BEIR, HELD_OUT))

    def is_hybrid(**section: object) -> list[bool]:
        asked = parse({"evaluation": section})
        return [of.forms(asked).hybrid for of in (judged, held_out)]

    assert is_hybrid() == [True, False]
    assert is_hybrid(hybrid=False) == [False, False]
    assert is_hybrid(hybrid=True) == [True, True]


def test_a_model_may_be_judged_by_what_it_is_with_words(spark, config) -> None:
    metric = metric_named(config, "promotion.metrics", "pumps@8+bm25.ndcg@10")
    assert (metric.evaluation, metric.figure, metric.sign) == ("pumps@8+bm25", "ndcg@10", 1)
    # BM25 alone says nothing of a model.
    with pytest.raises(InputError, match=r"`pumps\+bm25.bm25_ndcg@10` is not measured"):
        metric_named(config, "promotion.metrics", "pumps+bm25.bm25_ndcg@10")
    digests = digest_sets(spark, config)
    assert list(digests) == ["pumps", "pumps+bm25", "pumps@8", "pumps@8+bm25"]
    assert len(set(digests.values())) == 1


def test_deeper_cut_offs_leave_the_first_ranks_as_search_has_them() -> None:
    random, documents, queries = np.random.default_rng(2), 500, 3

    def ranking(deepest: int) -> Neighbours:
        ids = [random.permutation(documents)[:deepest] for _ in range(queries)]
        scores = [np.sort(random.random(deepest))[::-1] for _ in range(queries)]
        of = np.repeat(np.arange(queries), deepest)
        return Neighbours(of, np.concatenate(ids), np.concatenate(scores))

    deep = Rankings({WHOLE: ranking(300)}, ranking(300))
    first = Rankings({WHOLE: best_of(deep.by_width[WHOLE], 100)}, best_of(deep.by_words, 100))
    both = Form(hybrid=True)
    usual, deeper = first.in_forms(100)[both], deep.in_forms(300)[both]
    for query, found in deeper.items():
        assert found[:100] == usual[query]
        assert len({*found}) == 300
