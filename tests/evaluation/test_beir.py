"""Retrieval sets in BEIR's layout, against sentence-transformers' evaluator and scikit-learn."""

import gzip
import json
import logging
import math
from dataclasses import dataclass
from io import StringIO

import numpy as np
import pyarrow.parquet as pq
import pytest
from embedding_fixtures import small_model
from measured_sets import measured_on, write_set
from sklearn.metrics import ndcg_score

from pipelines.errors import InputError
from pipelines.evaluation.beir import _read_judgements, read_retrieval_set, set_name
from pipelines.evaluation.retrieval import Retrieved
from pipelines.evaluation.sets import evaluate
from pipelines.models.inference.embedder import load_embedder
from pipelines.settings.evaluation import EvaluationSettings
from pipelines.settings.load import parse
from pipelines.vectors.nearest import unit_length

__all__ = ["small_model"]

pytestmark = pytest.mark.slow

DOCUMENTS = {
    "d1": ("Cats", "They sleep in the warm sun."),
    "d2": ("", "A cat looks for food at night."),
    "d3": ("Dogs", "They run away from a man."),
    "d4": ("Whales", "They live in the sea and sing."),
    "d5": ("Stocks", "The market fell by three per cent."),
    "q2": ("", "stocks went down"),
}
QUERIES = {"q1": "sleeping cats", "q2": "stocks went down", "q3": "asked by nobody"}
QRELS = [("q1", "d1", 2), ("q1", "d5", 1), ("q1", "d4", 0), ("q2", "d5", 1)]


# What is found first is not what is most relevant to q1, nor relevant at all to q2.
GRADED = [("q1", "d1", 1), ("q1", "d5", 2), ("q1", "d4", 0), ("q2", "d3", 1)]
# Two documents and a query that are not there.
BROKEN = [*QRELS, ("q2", "d8", 1), ("q2", "d9", 1), ("q9", "d1", 1)]


@dataclass(frozen=True)
class Measured:
    """Figures and observations by set, and what was said of them."""

    figures: dict[str, dict[str, float]]
    observed: dict[str, Retrieved]
    log: str


@pytest.fixture(scope="module")
def measured(spark, small_model, tmp_path_factory) -> Measured:
    """Of two sets: with grades and groups, and with parts that are missing."""
    folder = tmp_path_factory.mktemp("sets")
    judged = {"graded": GRADED, "parts": BROKEN}
    sets = [write_set(folder / name, DOCUMENTS, QUERIES, qrels) for name, qrels in judged.items()]
    lines = [{"_id": key, "text": text, "group": "one"} for key, text in QUERIES.items()]
    (sets[0] / "queries.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    section = {
        **{"retrieval": False, "geometry": False, "hybrid": True},
        **{"missing_queries": "not_found", "missing_documents": "not_found"},
        **{"retrieval_sets": list(map(str, sets)), "retrieval_metrics": ["map@20"]},
    }
    observed: dict[str, Retrieved] = {}
    said = logging.StreamHandler(StringIO())
    logging.getLogger("pipelines").addHandler(said)
    try:
        config = parse({"evaluation": section})
        figures = evaluate(spark, config, small_model, observed.__setitem__)
    finally:
        logging.getLogger("pipelines").removeHandler(said)
    return Measured(figures, observed, said.stream.getvalue())


def test_grades_and_own_documents_count_as_in_beir(measured, small_model) -> None:
    figures = measured.figures["graded"]
    assert (figures["queries"], figures["documents"]) == (2, 6)
    texts = [f"{title} {text}".strip() for title, text in DOCUMENTS.values()]
    embed = load_embedder(small_model)
    asked = unit_length(embed.queries(list(QUERIES.values())))
    cosines = asked @ unit_length(embed.documents(texts)).T
    # The query q2 is a document too, the nearest one, and does not count.
    cosines[1, 5] = -1
    names = np.array(list(DOCUMENTS))
    assert names[np.argsort(-cosines[0])][:2].tolist() == ["d1", "d5"]
    assert names[np.argsort(-cosines[1])][:2].tolist() == ["d5", "d3"]
    gains = np.array([[1, 0, 0, 0, 2, 0], [0, 0, 1, 0, 0, 0]])
    assert figures["ndcg@10"] == pytest.approx(100 * ndcg_score(gains, cosines[:2], k=10))
    # A gain at rank 1 counts whole, at rank 2 by 1 / log2(3).
    second = 1 / math.log2(3)
    assert figures["ndcg@10"] == pytest.approx(
        100 * ((1 + 2 * second) / (2 + 1 * second) + second) / 2
    )
    assert figures["mrr@10"] == pytest.approx(100 * (1 / 1 + 1 / 2) / 2)


@pytest.mark.matrix
def test_equals_sentence_transformers_on_xquad(
    spark, shared_data, tmp_path, minilm, reference
) -> None:
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    corpus = pq.read_table(shared_data / "retrieval" / "xquad-corpus.parquet").to_pylist()
    asked = pq.read_table(shared_data / "retrieval" / "xquad-queries.parquet").to_pylist()
    # Of a part of the articles, each of which has several paragraphs of one subject.
    documents = {
        f"p{row['paragraph_id']}": (row["title"], row["text"])
        for row in [row for row in corpus if row["lang"] == "en"][:50]
    }
    there = [row for row in asked if row["lang"] == "en" and f"p{row['paragraph_id']}" in documents]
    asked = there[::6]
    queries = {f"q{row['query_id']}": row["question"] for row in asked}
    qrels = [(f"q{row['query_id']}", f"p{row['paragraph_id']}", 1) for row in asked]
    folder = write_set(tmp_path / "xquad", documents, queries, qrels)
    figures = measured_on(spark, minilm, retrieval_sets=[str(folder)])["xquad"]
    evaluator = InformationRetrievalEvaluator(
        queries,
        {key: f"{title} {text}".strip() for key, (title, text) in documents.items()},
        {query: {document} for query, document, _ in qrels},
        name="xquad",
    )
    expected = evaluator(reference)
    assert (figures["queries"], figures["documents"]) == (len(queries), len(documents))
    assert len(queries) > 30 and figures["recall@1"] < figures["ndcg@10"] < 100
    for name in ("ndcg@10", "mrr@10", "recall@1", "recall@10"):
        assert figures[name] == pytest.approx(100 * expected[f"xquad_cosine_{name}"], abs=1e-3)


def test_judged_documents_and_queries_that_are_missing_are_refused_unless_asked_for(
    spark, tmp_path
) -> None:
    folder = str(write_set(tmp_path / "parts", DOCUMENTS, QUERIES, BROKEN))
    with pytest.raises(
        InputError, match=r"1 query ids .* `q9`.* evaluation\.missing_queries to not_fo"
    ):
        read_retrieval_set(spark, folder)
    without_queries = EvaluationSettings(missing_queries="not_found")
    with pytest.raises(
        InputError, match=r"2 document ids .* `d8`.* evaluation\.missing_documents to"
    ):
        read_retrieval_set(spark, folder, settings=without_queries)


def test_judged_documents_and_queries_that_are_missing_count_as_not_found(measured) -> None:
    found = measured.figures
    assert (found["parts"]["queries"], found["parts"]["documents"]) == (3, 6)
    # q2 finds one of three documents at rank 1, and q9 nothing.
    assert found["parts"]["recall@10"] == pytest.approx(100 * (1 + 1 / 3 + 0) / 3)
    assert found["parts"]["map@20"] == pytest.approx(100 * (1 + 1 / 3 + 0) / 3)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert found["parts"]["ndcg@10"] == pytest.approx(100 * (1 + 1 / ideal + 0) / 3)
    assert found["parts+bm25"]["queries"] == 3
    assert "names 2 document ids" in measured.log and "they count as not found" in measured.log


def test_a_set_without_any_judged_query_is_refused(spark, tmp_path) -> None:
    folder = write_set(tmp_path / "set", DOCUMENTS, QUERIES, [("q9", "d1", 1)])
    settings = EvaluationSettings(missing_queries="not_found")
    with pytest.raises(InputError, match=r"queries.jsonl has no judged query\. Put the queries"):
        read_retrieval_set(spark, str(folder), settings=settings)


def test_the_judgements_are_those_of_a_split_and_queries_may_belong_together(
    spark, tmp_path
) -> None:
    folder = write_set(tmp_path / "set", DOCUMENTS, QUERIES, QRELS, "train")
    qrels = [(f"q{number}", "d1", 1) for number in range(1, 6)]
    write_set(folder, DOCUMENTS, QUERIES, qrels, "dev")
    # A compressed corpus counts too.
    plain = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    lines = [
        {"_id": "q1", "text": "a", "group": "t1"},
        {"_id": "q2", "text": "b", "group": 7, "thread": "x"},
        {"_id": "q3", "text": "c", "metadata": {"group": "t1", "thread": "x"}},
        {"_id": "q4", "text": "d", "group": None, "metadata": {"url": {"a": 1}}},
        {"_id": "q5", "text": "e", "group": " ", "metadata": "none"},
    ]
    text = "\n".join(map(json.dumps, lines))
    (folder / "queries.jsonl").write_text(text, encoding="utf-8")

    def groups(given: object, **settings) -> list[int]:
        """The groups of the queries by their ids, numbered as they come."""
        asked = read_retrieval_set(spark, str(given), settings=EvaluationSettings(**settings))
        rows = asked["asked"].orderBy("text").collect()
        known = dict.fromkeys(row["group"] for row in rows)
        return [[*known].index(row["group"]) for row in rows]

    assert groups(folder) == [0, 1, 0, 2, 3]
    assert groups(folder, query_group="thread") == [0, 1, 1, 2, 3]
    train = folder / "qrels" / "train.tsv"
    assert groups(train, query_group="nowhere") == [0, 0, 1]
    assert (set_name(str(folder)), set_name(str(train))) == ("set", "set-train")


def test_groups_reach_the_observations(measured) -> None:
    groups = measured.observed["graded"].observations.groups
    assert len(groups) == 2 and len(set(groups.tolist())) == 1


def test_refuses_sets_that_are_not_whole(spark, tmp_path) -> None:
    def refused(problem: str, file: str, text: str) -> None:
        folder = write_set(tmp_path / "set", DOCUMENTS, QUERIES, QRELS)
        (folder / file).write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=f"^evaluation.retrieval_sets: .*{problem}"):
            if file == qrels:
                _read_judgements(spark, folder / file)
            else:
                read_retrieval_set(spark, str(folder))

    qrels, head = "qrels/test.tsv", "query-id\tcorpus-id\tscore\n"
    refused("has no column `query-id`. .* which names q1, 0, d1, 1", qrels, "q1\t0\td1\t1\n")
    refused("test.tsv is empty", qrels, head)
    refused("has no score above 0", qrels, head + "q1\td1\t0\n")
    lines = "q1\td1\thigh\nq1\td2\tNaN\nq2\td5\tinf\nq2\td4\t-Infinity\nq2\td3\t1\n"
    refused("has 4 lines without both ids and a finite score", qrels, head + lines)
    refused("corpus.jsonl has no lines", "corpus.jsonl", "")
    refused("corpus.jsonl has 1 lines that are no JSON", "corpus.jsonl", '{"_id": "d1"\n')
    refused("corpus.jsonl has 1 lines without `_id`", "corpus.jsonl", '{"text": "a"}\n')
    refused("has 1 lines without `text`", "queries.jsonl", '{"_id": "q1"}\n')
    twice = '{"_id": "d1", "text": "a"}\n' * 2
    refused("has 1 lines whose `_id` is there already", "corpus.jsonl", twice)
    (tmp_path / "set" / qrels).rename(tmp_path / "set" / "qrels" / "a.tsv")
    (tmp_path / "set" / "qrels" / "b.tsv").write_text(head)
    told = {"set": "qrels holds a.tsv, b.tsv. Name the file of", "nowhere": "there is no .*nowhere"}
    for name, problem in told.items():
        with pytest.raises(InputError, match=f"^evaluation.retrieval_sets: .*{problem}"):
            read_retrieval_set(spark, str(tmp_path / name))
