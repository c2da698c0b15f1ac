"""Retrieval whose first documents a cross-encoder ranks again: its order, and fused with the first.

Expected orders come from sentence-transformers' scores.
"""

import numpy as np
import pytest
from embedding_fixtures import small_model
from measured_sets import write_set
from tiny_rerankers import LINES, write_reranker

from pipelines.errors import InputError
from pipelines.evaluation.retrieval import ndcg_at
from pipelines.evaluation.sets import check_sets, evaluate
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.load import parse
from pipelines.vectors.nearest import unit_length

__all__ = ["small_model"]

pytestmark = pytest.mark.slow

DOCUMENTS = {f"d{place}": ("", text) for place, text in enumerate(LINES)}
QUERIES = {"q1": "the text that a model knows", "q2": "seven words", "q3": "nobody reads ten"}
QRELS = [("q1", "d0", 1), ("q1", "d3", 2), ("q2", "d4", 1), ("q3", "d2", 1), ("q3", "d5", 1)]
SHARE = 0.3
CONSTANT = 60
"""Of the fusion, in its source."""


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    return write_reranker(tmp_path_factory.mktemp("reranker") / "bert", "bert")


@pytest.fixture(scope="module")
def config(reranker, tmp_path_factory):
    folder = write_set(tmp_path_factory.mktemp("sets") / "lines", DOCUMENTS, QUERIES, QRELS)
    section = {"retrieval": False, "geometry": False, "hybrid": False, "reranker": str(reranker)}
    return parse({"evaluation": {**section, "retrieval_sets": [str(folder)]}})


@pytest.fixture(scope="module")
def orders(small_model, reranker):
    """Of each query, the names by cosine and by the cross-encoder's score."""
    from sentence_transformers import CrossEncoder

    names, embed = np.array(list(DOCUMENTS)), load_embedder(small_model)
    texts = [text for _, text in DOCUMENTS.values()]
    score = CrossEncoder(str(reranker), device="cpu").predict
    there = unit_length(embed(texts))
    return {
        name: tuple(
            names[np.argsort(-scores, kind="stable")].tolist()
            for scores in (
                there @ unit_length(embed([query]))[0],
                score([(query, text) for text in texts]),
            )
        )
        for name, query in QUERIES.items()
    }


def expected(orders, order_of):
    gains = {name: {to: gain for asked, to, gain in QRELS if asked == name} for name in QUERIES}
    found = [ndcg_at(order_of(*orders[name]), gains[name], 10) for name in QUERIES]
    return pytest.approx(100 * float(np.mean(found)), abs=1e-6)


def fused(first, again):
    sums = {
        name: (1 - SHARE) / (CONSTANT + 1 + first.index(name))
        + SHARE / (CONSTANT + 1 + again.index(name))
        for name in first
    }
    return sorted(first, key=lambda name: -sums[name])


def test_the_first_documents_are_ranked_again_and_fused_where_asked(
    spark, config, small_model, orders
):
    by_cosine, again, both = (
        expected(orders, order) for order in (lambda first, _: first, lambda _, last: last, fused)
    )
    assert len({by_cosine.expected, again.expected, both.expected}) == 3
    figures = evaluate(spark, config, small_model)
    assert list(figures) == ["lines", "lines+rerank"]
    assert figures["lines"]["ndcg@10"] == by_cosine
    assert figures["lines+rerank"]["ndcg@10"] == again
    config = config.changed("evaluation", rerank_share=SHARE)
    figures = evaluate(spark, config, small_model)
    assert figures["lines"]["ndcg@10"] == by_cosine
    assert list(figures) == ["lines", "lines+rerank@0.3"]
    assert figures["lines+rerank@0.3"]["ndcg@10"] == both


def test_nothing_is_fused_without_a_cross_encoder(config):
    config = config.changed("evaluation", rerank_share=SHARE, reranker=None)
    with pytest.raises(InputError, match=r"^evaluation\.rerank_share: no evaluation\.reranker nam"):
        check_sets(config)
