"""The stage: what the settings ask for, and no more."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.errors import InputError
from pipelines.evaluation.geometry import geometry_figures
from pipelines.evaluation.sets import evaluate, named_sets
from pipelines.settings.load import parse
from pipelines.vectors.nearest import unit_length

ASKED = ["a sleeping animal", "stocks went down", "weather in England"]
TEXTS = ["A cat sleeps.", "The market fell.", "It rains in London."]


@pytest.fixture
def prepared(tmp_path):
    folder = tmp_path / "prepared" / "corpus" / "evaluation"
    folder.mkdir(parents=True)
    documents = {"document_id": [1, 2, 3, 4], "text": [*TEXTS, "Not asked for."]}
    pq.write_table(pa.table(documents), folder / "documents.parquet")
    queries = {"query_id": [4, 5, 6], "text": ASKED, "document_id": [1, 2, 3]}
    pq.write_table(pa.table(queries), folder / "queries.parquet")
    pairs = {"sentence1": ASKED, "sentence2": TEXTS, "score": [5.0, 4.0, 3.0]}
    pq.write_table(pa.table(pairs), tmp_path / "dev.parquet")
    return tmp_path


def test_measures_what_is_asked_for(spark, prepared, minilm, reference) -> None:
    settings = {
        "prepared": {"folder": str(prepared / "prepared")},
        "evaluation": {"similarity": [str(prepared / "dev.parquet")]},
        # The whole width is no other, and of one number nothing can be told.
        "objective": {"dimensions": [384, 1, 128]},
    }
    figures = evaluate(spark, parse(settings), minilm)
    assert list(figures) == ["retrieval", "retrieval@128", "retrieval@1", "geometry", "dev"]
    assert figures["retrieval@128"] == figures["retrieval"]
    assert figures["retrieval@1"]["ndcg@10"] < 100
    assert list(figures["retrieval"].items()) == [
        ("queries", 3),
        ("documents", 4),
        ("ndcg@10", 100.0),
        ("mrr@10", 100.0),
        ("recall@1", 100.0),
        ("recall@10", 100.0),
    ]
    asked, texts = (unit_length(reference.encode(side)) for side in (ASKED, TEXTS))
    assert figures["geometry"] == pytest.approx(geometry_figures(asked, texts), abs=1e-4)
    cosines = (asked * texts).sum(axis=1)
    expected = {"pairs": 3, "pearson": 100 * np.corrcoef(cosines, [5.0, 4.0, 3.0])[0, 1]}
    assert {name: figures["dev"][name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_documents_for_training_are_searched_too(spark, prepared, minilm) -> None:
    folder = prepared / "prepared" / "corpus" / "evaluation" / "distractors.parquet"
    folder.mkdir()
    # One is nearer to a query than its own document.
    texts = {"document_id": [7, 8], "text": ["A sleeping animal.", "Of another matter."]}
    pq.write_table(pa.table(texts), folder / "part.parquet")
    settings = parse({"prepared": {"folder": str(prepared / "prepared")}})
    figures = evaluate(spark, settings, minilm)
    assert figures["retrieval"]["documents"] == 6
    assert figures["retrieval"]["recall@1"] == pytest.approx(100 * 2 / 3)
    assert figures["geometry"]["pairs"] == 3


def test_leaves_out_what_is_not_there(spark, prepared, minilm) -> None:
    elsewhere = {"prepared": {"folder": str(prepared / "elsewhere")}}
    assert evaluate(spark, parse(elsewhere), minilm) == {}
    unwanted = {
        "prepared": {"folder": str(prepared / "prepared")},
        "evaluation": {"retrieval": False, "geometry": False},
    }
    assert evaluate(spark, parse(unwanted), minilm) == {}


def test_every_evaluation_has_a_name_of_its_own() -> None:
    def names(**evaluation) -> list[str]:
        return [one.name for one in named_sets(parse({"evaluation": evaluation}))]

    assert names(
        similarity=["a/dev.csv", "b/test.csv"],
        classification=["a/dev.parquet", "b/paws.jsonl.gz"],
        retrieval_sets=["sets/scifact", "sets/scifact/qrels/train.tsv", "sets/test"],
    ) == [
        "a/dev.csv",
        "b/test.csv",
        "a/dev.parquet",
        "paws",
        "scifact",
        "scifact-train",
        "sets/test",
    ]
    assert names(similarity=["retrieval.csv"], retrieval=False) == ["retrieval.csv"]
    with pytest.raises(InputError, match=r"evaluation: x.csv is named twice"):
        names(similarity=["x.csv"], classification=["x.csv"])
